package reservation

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the store. Labels are bounded: operations, outcomes, phases.
type metrics struct {
	calls     *prometheus.HistogramVec
	conflicts *prometheus.CounterVec
	ended     *prometheus.CounterVec
	waits     *prometheus.HistogramVec
	reloads   prometheus.Counter

	mirror atomic.Pointer[Mirror]
}

func newMetrics() *metrics {
	return &metrics{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "lockstep_redis_call_duration_seconds",
			Help:    "Time of calls to Redis, by operation and result. Is Redis slow, or failing?",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 12),
		}, []string{"operation", "result"}),
		conflicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_reservation_conflicts_total",
			Help: "Reservations refused by the store, by cause: outrun by another replica, or fenced off from an emptied store. Do replicas get in each other's way?",
		}, []string{"cause"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_reservations_ended_total",
			Help: "Reservations that have ended, by how: finish, abort, expire, drop. Do gangs start where they were planned?",
		}, []string{"how"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "lockstep_barrier_wait_duration_seconds",
			Help:    "Time that bind calls waited for the rest of their gang, by outcome. Do members arrive together?",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 13),
		}, []string{"outcome"}),
		reloads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_mirror_reloads_total",
			Help: "Times that this replica had to read the whole store anew. Does it lose the feed?",
		}),
	}
}

func (m *metrics) register(reg prometheus.Registerer) {
	reg.MustRegister(m.calls, m.conflicts, m.ended, m.waits, m.reloads, (*mirrorCollector)(m))
}

// observe makes a mirror the one whose reservations are shown.
func (m *metrics) observe(mirror *Mirror) { m.mirror.Store(mirror) }

// mirrorCollector shows the mirror as it is when it is scraped.
type mirrorCollector metrics

var (
	reservationsDesc = prometheus.NewDesc("lockstep_reservations",
		"Reservations in the store, by phase. How much is about to start?", []string{"phase"}, nil)
	oldestDesc = prometheus.NewDesc("lockstep_reservation_oldest_age_seconds",
		"Age of the oldest reservation, by phase. Does one hold room that it does not use?", []string{"phase"}, nil)
	upDesc = prometheus.NewDesc("lockstep_mirror_up",
		"Whether this replica's copy of the store can be believed. Can it answer?", nil, nil)
	revisionDesc = prometheus.NewDesc("lockstep_mirror_revision",
		"Revision of the store that this replica has seen. Does it follow?", nil, nil)
)

func (c *mirrorCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{reservationsDesc, oldestDesc, upDesc, revisionDesc} {
		out <- d
	}
}

func (c *mirrorCollector) Collect(out chan<- prometheus.Metric) {
	m := c.mirror.Load()
	if m == nil {
		return
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	var n, oldest [2]float64
	for _, e := range m.gangs {
		n[e.Phase]++
		oldest[e.Phase] = max(oldest[e.Phase], time.Since(e.Created).Seconds())
	}
	for _, phase := range []Phase{Reserved, Committed} {
		out <- prometheus.MustNewConstMetric(reservationsDesc, prometheus.GaugeValue, n[phase], phase.String())
		out <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, oldest[phase], phase.String())
	}
	up := 0.0
	if m.up() {
		up = 1
	}
	out <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up)
	out <- prometheus.MustNewConstMetric(revisionDesc, prometheus.GaugeValue, float64(m.revision.Rev))
}
