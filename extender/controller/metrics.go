package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// Registerer is where metrics go.
type Registerer = prometheus.Registerer

// metrics of the controller. Labels are bounded: phases, and reason codes.
type metrics struct {
	gangs    *prometheus.GaugeVec
	oldest   *prometheus.GaugeVec
	wait     prometheus.Histogram
	outcomes *prometheus.CounterVec
	round    prometheus.Histogram
	place    prometheus.Histogram
	lost     *prometheus.CounterVec
	handed   *prometheus.CounterVec
}

func newMetrics(reg Registerer) *metrics {
	m := &metrics{
		gangs: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_gangs",
			Help: "Gangs that want something, by phase and reason. Who waits, and for what? Set by the replica that plans.",
		}, []string{"phase", "reason"}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_gang_oldest_wait_seconds",
			Help: "Age of the oldest gang that waits, by reason. Does one wait too long?",
		}, []string{"reason"}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "lockstep_gang_wait_seconds",
			Help:    "Time from a gang's first member to its room being reserved. How long do gangs wait?",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 20),
		}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_gang_outcomes_total",
			Help: "What became of gangs: reserved, bound, timed out, evicted. How do they end?",
		}, []string{"outcome"}),
		round: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "lockstep_round_duration_seconds",
			Help:    "Time of one round of the controller. Does planning keep up?",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		place: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "lockstep_place_duration_seconds",
			Help:    "Time to place one gang. Does planning keep up?",
			Buckets: prometheus.ExponentialBuckets(0.00001, 2, 16),
		}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_places_lost_total",
			Help: "Reservations given up before the gang started, by cause. Why do gangs lose their place?",
		}, []string{"cause"}),
		handed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_gpus_handed_total",
			Help: "Pods that were handed GPUs by their node, by how these compare with what was foreseen: foreseen, unforeseen (and as good), better, worse. Does the device plugin choose as expected?",
		}, []string{"verdict"}),
	}
	reg.MustRegister(m.gangs, m.oldest, m.wait, m.outcomes, m.round, m.place, m.lost, m.handed)
	return m
}

// Phases of a gang as metrics show them.
const (
	phaseWaiting  = "waiting"  // has no place
	phaseReserved = "reserved" // has a place, is not committed yet
	phaseStarting = "starting" // committed, not all bound yet
	phaseBroken   = "broken"   // runs below its minimum
	phaseInvalid  = "invalid"  // held for what its pods say
)

type label struct{ phase, reason string }

// set replaces the gauges by what this round saw.
func (m *metrics) set(counts map[label]int, oldest map[gang.Code]float64) {
	m.gangs.Reset()
	for l, n := range counts {
		m.gangs.WithLabelValues(l.phase, l.reason).Set(float64(n))
	}
	m.oldest.Reset()
	for code, age := range oldest {
		m.oldest.WithLabelValues(string(code)).Set(age)
	}
}
