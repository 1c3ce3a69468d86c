// Package nodeagent reads a node's GPUs, their links and who uses them, and reports
// them as a NodeTopology.
package nodeagent

import (
	"fmt"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// Inventory is what the driver shows of a node at one moment.
type Inventory struct {
	// Driver is the version of NVIDIA's driver; empty where there is none, and
	// Absent says why.
	Driver, Absent string
	// NUMAPolicy is the kubelet's topology manager policy; empty: not known.
	NUMAPolicy string
	GPUs       []GPU
	// Links has one entry for each pair of GPUs.
	Links []Link
	// Gaps names what could not be read, shortly; what depends on it is left out
	// or taken for the worse.
	Gaps []string
}

// GPU is one GPU.
type GPU struct {
	Index      int // NVML's
	Minor      int // of /dev/nvidia0
	UUID       string
	Model      string
	Bus        string // as in sysfs: 0000:17:00.0
	Memory     uint64 // bytes
	NUMA       int    // -1: not known
	PCIe       float64
	MIG        bool
	MIGDevices []string // their UUIDs
	NVLinks    []NVLink
	Fabric     *Fabric
	Health     Health
	Figures    Figures
}

// NVLink is one port of a GPU.
type NVLink struct {
	Port    int
	Up      bool
	Version int
	MBps    int // of 10⁶ bytes, in one direction; 0: not told
	// Switch tells that an NVSwitch is at the other end; else the GPU with the bus
	// is, if it is one of this node.
	Switch bool
	Peer   string
}

// Link is the connection of the GPUs with the indices A and B, A < B.
type Link struct {
	A, B int
	topology.Link
}

// Fabric is the multi-node NVLink fabric that a GPU has joined.
type Fabric struct {
	Cluster string `json:"cluster"` // UUID
	Clique  uint32 `json:"clique"`
}

// Health is what the driver knows of a GPU's faults.
type Health struct {
	Lost           bool // it has fallen off the bus
	RemapFailed    bool // memory rows could not be replaced
	RemapPending   bool // and will be at the next reset
	Remaps         bool // the GPU can replace rows at all
	UncorrectedECC uint64
	XID            int // the last critical one since the agent started; 0: none
}

// Unhealthy says why the GPU must not be given to anybody, or "".
func (h Health) Unhealthy() string {
	switch {
	case h.Lost:
		return "lost"
	case h.XID != 0:
		return fmt.Sprintf("XID %d", h.XID)
	case h.RemapFailed:
		return "memory rows could not be remapped"
	case h.UncorrectedECC > 0 && !h.Remaps:
		return "uncorrected memory errors"
	}
	return ""
}

// Figures are for monitoring only. What the GPU does not tell is -1.
type Figures struct {
	Utilisation float64 // share, 0 to 1
	MemoryUsed  float64 // bytes
	Celsius     float64
	Watts       float64
	NVLinkTX    float64 // bytes since the driver was loaded
	NVLinkRX    float64
	PCIeTX      float64 // bytes per second
	PCIeRX      float64
}

var unknownFigures = Figures{-1, -1, -1, -1, -1, -1, -1, -1}

// pairLinks finds the connections of all pairs. path and reachable ask the driver
// for two GPUs, by their place in the list: the common ancestor on PCIe, and
// whether peers reach each other by NVLink, which ports that are up do not tell.
func pairLinks(gpus []GPU, path func(i, j int) topology.Path, reachable func(i, j int) bool) []Link {
	var out []Link
	for i := range gpus {
		for j := i + 1; j < len(gpus); j++ {
			l := topology.Link{Path: path(i, j)}
			direct, directMBps := linksTo(&gpus[i], gpus[j].Bus)
			switched, switchedMBps := throughSwitches(&gpus[i], &gpus[j])
			if direct+switched > 0 && reachable(i, j) {
				l.NVLinks, l.GBps = direct, float64(directMBps)/1000
				if direct == 0 {
					l.NVLinks, l.GBps, l.Switched = switched, float64(switchedMBps)/1000, true
				}
			} else {
				l.GBps = topology.PCIe(l.Path, min(gpus[i].PCIe, gpus[j].PCIe))
			}
			out = append(out, Link{gpus[i].Index, gpus[j].Index, l})
		}
	}
	return out
}

// linksTo counts the links that are up to the GPU with the bus.
func linksTo(g *GPU, bus string) (n, mbps int) {
	for _, l := range g.NVLinks {
		if l.Up && !l.Switch && l.Peer == bus {
			n++
			mbps += l.speed(g.Model)
		}
	}
	return n, mbps
}

// throughSwitches counts the links into switches that both have.
func throughSwitches(a, b *GPU) (n, mbps int) {
	count := func(g *GPU) (n, mbps int) {
		for _, l := range g.NVLinks {
			if l.Up && l.Switch {
				n++
				mbps += l.speed(g.Model)
			}
		}
		return n, mbps
	}
	an, am := count(a)
	bn, bm := count(b)
	return min(an, bn), min(am, bm)
}

// speed is what the driver reports, or else what the model has.
func (l NVLink) speed(model string) int {
	if l.MBps > 0 {
		return l.MBps
	}
	return int(topology.NVLinkOf(model).GBps * 1000)
}
