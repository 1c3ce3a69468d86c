//go:build cgo

package nodeagent

import (
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func (r *reading) health(g *GPU, device nvml.Device) {
	g.Health.Remaps = r.ask("nvmlDeviceGetRemappedRows", g.Index, func() nvml.Return {
		_, _, pending, failed, ret := device.GetRemappedRows()
		g.Health.RemapPending, g.Health.RemapFailed = pending, failed
		return ret
	})
	r.ask("nvmlDeviceGetTotalEccErrors", g.Index, func() (ret nvml.Return) {
		g.Health.UncorrectedECC, ret = device.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
		return ret
	})
}

func (r *reading) figures(g *GPU, device nvml.Device) {
	f := &g.Figures
	r.ask("nvmlDeviceGetUtilizationRates", g.Index, func() nvml.Return {
		use, ret := device.GetUtilizationRates()
		if ret == nvml.SUCCESS {
			f.Utilisation = float64(use.Gpu) / 100
		}
		return ret
	})
	r.ask("nvmlDeviceGetTemperature", g.Index, func() nvml.Return {
		celsius, ret := device.GetTemperature(nvml.TEMPERATURE_GPU)
		if ret == nvml.SUCCESS {
			f.Celsius = float64(celsius)
		}
		return ret
	})
	r.ask("nvmlDeviceGetPowerUsage", g.Index, func() nvml.Return {
		milliwatts, ret := device.GetPowerUsage()
		if ret == nvml.SUCCESS {
			f.Watts = float64(milliwatts) / 1000
		}
		return ret
	})
	for counter, to := range map[nvml.PcieUtilCounter]*float64{nvml.PCIE_UTIL_TX_BYTES: &f.PCIeTX, nvml.PCIE_UTIL_RX_BYTES: &f.PCIeRX} {
		r.ask("nvmlDeviceGetPcieThroughput", g.Index, func() nvml.Return {
			kib, ret := device.GetPcieThroughput(counter)
			if ret == nvml.SUCCESS {
				*to = float64(kib) * 1024
			}
			return ret
		})
	}
	r.traffic(g, device)
}

// traffic reads the counters of all the GPU's NVLinks together.
func (r *reading) traffic(g *GPU, device nvml.Device) {
	const allLinks = math.MaxUint32
	if len(g.NVLinks) == 0 || !r.has("nvmlDeviceGetFieldValues") {
		return
	}
	values := []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: allLinks},
		{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ScopeId: allLinks},
	}
	if device.GetFieldValues(values) != nvml.SUCCESS {
		return
	}
	for i, to := range []*float64{&g.Figures.NVLinkTX, &g.Figures.NVLinkRX} {
		if kib, ok := number(values[i]); ok {
			*to = kib * 1024
		}
	}
}

// applicationXIDs are errors of the program, not of the GPU. Source: NVIDIA's
// device plugin, which takes GPUs out of a node's allocatable for all others.
var applicationXIDs = []uint64{13, 31, 43, 45, 68, 109}

// xid takes in the critical errors since the last reading.
func (r *reading) xid() {
	if !r.has("nvmlEventSetCreate") || !r.has("nvmlDeviceRegisterEvents") || !r.any("nvmlEventSetWait_v2", "nvmlEventSetWait") {
		return
	}
	if r.events == nil {
		set, ret := r.lib.EventSetCreate()
		if ret != nvml.SUCCESS {
			r.gap("no events: %s", name(ret))
			return
		}
		r.events = set
	}
	for i, device := range r.devices {
		if device == nil || r.watched[device] != "" {
			continue
		}
		if device.RegisterEvents(nvml.EventTypeXidCriticalError, r.events) == nvml.SUCCESS {
			r.watched[device] = r.inv.GPUs[i].UUID
		}
	}
	const atOnce = 100 // a GPU may repeat itself
	for range atOnce {
		event, ret := r.events.Wait(0)
		if ret != nvml.SUCCESS {
			break
		}
		r.note(event)
	}
	for i := range r.inv.GPUs {
		g := &r.inv.GPUs[i]
		g.Health.XID = r.xids[g.UUID]
	}
}

func (r *reading) note(event nvml.EventData) {
	if event.EventType != nvml.EventTypeXidCriticalError || slices.Contains(applicationXIDs, event.EventData) {
		return
	}
	// The GPU may not answer any more: its handle says which it is.
	if id := r.watched[event.Device]; id != "" {
		r.xids[id] = int(min(event.EventData, math.MaxInt32))
	}
}
