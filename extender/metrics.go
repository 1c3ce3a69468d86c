package extender

import "github.com/prometheus/client_golang/prometheus"

// metrics of the HTTP face. Labels are bounded: verbs, results, reason codes.
type metrics struct {
	duration *prometheus.HistogramVec
	flying   *prometheus.GaugeVec
	names    *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	panics   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "lockstep_extender_request_duration_seconds",
			Help:    "Time of kube-scheduler's calls, by verb and result. Do we hold the scheduler up?",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 15),
		}, []string{"verb", "result"}),
		flying: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_extender_requests_in_flight",
			Help: "Calls being answered, by verb. How many binds wait for their gang?",
		}, []string{"verb"}),
		names: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "lockstep_extender_names_per_call",
			Help:    "Nodes that a call offered, by verb. Does kube-scheduler try planned pods on their one node, as it should?",
			Buckets: []float64{1, 2, 10, 100, 1000, 10000},
		}, []string{"verb"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_extender_refusals_total",
			Help: "Filter calls that were refused, by reason. Why does kube-scheduler try in vain?",
		}, []string{"reason"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_extender_panics_total",
			Help: "Calls that ended in a panic. Is there a bug?",
		}),
	}
	reg.MustRegister(m.duration, m.flying, m.names, m.refusals, m.panics)
	return m
}
