package nodeagent

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the node's GPUs and the agent's own work. The labels UUID and gpu are
// those of NVIDIA's DCGM exporter, node, namespace and pod those of kube-state-metrics,
// so that queries can join them.
type Metrics struct {
	nics  func() []NIC
	polls *prometheus.HistogramVec
	wrote *prometheus.CounterVec
	descs map[string]*prometheus.Desc

	mu        sync.Mutex
	inventory *Inventory
	uses      []Use
}

// figure is one metric of each GPU.
type figure struct {
	name, help string
	kind       prometheus.ValueType
	of         func(*GPU) float64 // negative: not known
}

var figures = []figure{
	{"lockstep_gpu_utilisation_ratio", "Share of the time in which the GPU ran something, 0 to 1. Which GPUs idle while others wait for some?", prometheus.GaugeValue, func(g *GPU) float64 { return g.Figures.Utilisation }},
	{"lockstep_gpu_memory_used_bytes", "Memory of the GPU in use.", prometheus.GaugeValue, func(g *GPU) float64 { return g.Figures.MemoryUsed }},
	{"lockstep_gpu_memory_bytes", "Memory of the GPU.", prometheus.GaugeValue, func(g *GPU) float64 { return float64(g.Memory) }},
	{"lockstep_gpu_temperature_celsius", "Temperature of the GPU.", prometheus.GaugeValue, func(g *GPU) float64 { return g.Figures.Celsius }},
	{"lockstep_gpu_power_watts", "Power that the GPU draws.", prometheus.GaugeValue, func(g *GPU) float64 { return g.Figures.Watts }},
	{"lockstep_gpu_nvlink_sent_bytes_total", "Data sent over the GPU's NVLinks. Do gangs use the links that they were placed for?", prometheus.CounterValue, func(g *GPU) float64 { return g.Figures.NVLinkTX }},
	{"lockstep_gpu_nvlink_received_bytes_total", "Data received over the GPU's NVLinks.", prometheus.CounterValue, func(g *GPU) float64 { return g.Figures.NVLinkRX }},
	{"lockstep_gpu_pcie_sent_bytes_per_second", "Data sent over PCIe. Much of it where NVLink was expected means that the program does not use it.", prometheus.GaugeValue, func(g *GPU) float64 { return g.Figures.PCIeTX }},
	{"lockstep_gpu_pcie_received_bytes_per_second", "Data received over PCIe.", prometheus.GaugeValue, func(g *GPU) float64 { return g.Figures.PCIeRX }},
	{"lockstep_gpu_nvlinks_up", "NVLinks of the GPU that are up. Has one failed?", prometheus.GaugeValue, func(g *GPU) float64 { return float64(up(g)) }},
	{"lockstep_gpu_nvlinks", "NVLinks that the GPU has.", prometheus.GaugeValue, func(g *GPU) float64 { return float64(len(g.NVLinks)) }},
	{"lockstep_gpu_healthy", "1 if the GPU may be given to pods, else 0; the NodeTopology says why. Which GPUs need repair?", prometheus.GaugeValue, func(g *GPU) float64 {
		if g.Health.Unhealthy() != "" {
			return 0
		}
		return 1
	}},
}

func up(g *GPU) int {
	n := 0
	for _, l := range g.NVLinks {
		if l.Up {
			n++
		}
	}
	return n
}

// NewMetrics registers the metrics. nics reads the network devices; nil: there are
// none.
func NewMetrics(node string, nics func() []NIC, reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		nics: nics, descs: map[string]*prometheus.Desc{},
		polls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_agent_poll_seconds", Help: "Time of one poll of the driver and the kubelet, by how it ended. Does a GPU make the driver hang?",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 30},
		}, []string{"result"}),
		wrote: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_agent_reports_total", Help: "Reports written to the API server, by result. How much does the agent write?",
		}, []string{"result"}),
	}
	for _, f := range figures {
		m.descs[f.name] = prometheus.NewDesc(f.name, f.help, []string{"gpu", "UUID", "model"}, prometheus.Labels{"node": node})
	}
	m.descs[used] = prometheus.NewDesc(used, "1 for each GPU that the pod holds. Who uses which GPU?", []string{"gpu", "UUID", "namespace", "pod"}, prometheus.Labels{"node": node})
	for name, help := range map[string]string{
		nicSent:     "Data sent by the network device or InfiniBand port. Do gangs that span nodes saturate the network?",
		nicReceived: "Data received by the network device or InfiniBand port.",
	} {
		m.descs[name] = prometheus.NewDesc(name, help, []string{"device"}, prometheus.Labels{"node": node})
	}
	reg.MustRegister(m.polls, m.wrote, m)
	return m
}

const (
	used        = "lockstep_gpu_used"
	nicSent     = "lockstep_nic_sent_bytes_total"
	nicReceived = "lockstep_nic_received_bytes_total"
)

func (m *Metrics) polled(p poll, took time.Duration) {
	result := "ok"
	switch {
	case p.driver != nil:
		result = "driver"
	case p.kubelet != nil:
		result = "kubelet"
	}
	m.polls.WithLabelValues(result).Observe(took.Seconds())
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inventory, m.uses = p.inventory, p.uses
}

func (m *Metrics) published(wrote bool, err error) {
	switch {
	case err != nil:
		m.wrote.WithLabelValues("error").Inc()
	case wrote:
		m.wrote.WithLabelValues("ok").Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	if m.nics != nil {
		for _, nic := range m.nics() {
			to <- prometheus.MustNewConstMetric(m.descs[nicSent], prometheus.CounterValue, nic.Sent, nic.Device)
			to <- prometheus.MustNewConstMetric(m.descs[nicReceived], prometheus.CounterValue, nic.Received, nic.Device)
		}
	}
	m.mu.Lock()
	inv, uses := m.inventory, m.uses
	m.mu.Unlock()
	if inv == nil {
		return
	}
	byIndex := map[int]*GPU{}
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		byIndex[g.Index] = g
		for _, f := range figures {
			if v := f.of(g); v >= 0 {
				to <- prometheus.MustNewConstMetric(m.descs[f.name], f.kind, v, fmt.Sprint(g.Index), g.UUID, g.Model)
			}
		}
	}
	for _, u := range uses {
		for _, i := range u.GPUs {
			if g := byIndex[i]; g != nil {
				to <- prometheus.MustNewConstMetric(m.descs[used], prometheus.GaugeValue, 1, fmt.Sprint(g.Index), g.UUID, u.Namespace, u.Name)
			}
		}
	}
}
