package topology

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Set is a set of GPUs of one node: bit i is GPU i.
type Set uint32

// MaxGPUs is the most GPUs of a node of which the links are ranked.
const MaxGPUs = 16

// SetOf makes the set of these GPUs.
func SetOf(gpus ...int) Set {
	var s Set
	for _, i := range gpus {
		s |= 1 << i
	}
	return s
}

// Len is the number of GPUs in the set.
func (s Set) Len() int { return bits.OnesCount32(uint32(s)) }

// Has tells whether the GPU is in the set.
func (s Set) Has(gpu int) bool { return s>>gpu&1 == 1 }

// GPUs lists the set in ascending order.
func (s Set) GPUs() []int {
	out := make([]int, 0, s.Len())
	for ; s != 0; s &= s - 1 {
		out = append(out, bits.TrailingZeros32(uint32(s)))
	}
	return out
}

// lowest is the set of the lowest GPU alone.
func (s Set) lowest() Set { return s & -s }

// Graph is the GPUs of a node with their connections. It is immutable.
type Graph struct {
	n     int
	links []Link // n×n, symmetric
	numa  []int  // by GPU; -1: not known
}

// NewGraph makes the graph of GPUs with the NUMA nodes (-1: not known). link gives
// the connection of two, i < j.
func NewGraph(numa []int, link func(i, j int) Link) (*Graph, error) {
	n := len(numa)
	if n > MaxGPUs {
		return nil, fmt.Errorf("%d GPUs on one node; links are ranked for up to %d", n, MaxGPUs)
	}
	g := &Graph{n: n, links: make([]Link, n*n), numa: append([]int(nil), numa...)}
	for i := range n {
		for j := i + 1; j < n; j++ {
			l := link(i, j)
			if l.GBps < 0 || math.IsNaN(l.GBps) || math.IsInf(l.GBps, 0) || l.NVLinks < 0 || int(l.Path) >= len(pathNames) {
				return nil, fmt.Errorf("GPUs %d and %d: no such connection: %+v", i, j, l)
			}
			g.links[i*n+j], g.links[j*n+i] = l, l
		}
	}
	return g, nil
}

// Graph makes the graph of a matrix. The model is NVML's name of the GPUs, or "".
//
// A matrix does not tell NVSwitches from direct links. A GPU that shows more links
// to its peers, all together, than its model has must reach them through switches.
func (m *Matrix) Graph(model string) (*Graph, error) {
	spec := NVLinkOf(model)
	switched := make([]bool, len(m.GPUs))
	for i, row := range m.Cells {
		sum := 0
		for _, cell := range row {
			sum += cell.NVLinks
		}
		switched[i] = sum > spec.Links
	}
	return NewGraph(m.NUMA, func(i, j int) Link {
		cell := m.Cells[i][j]
		l := Link{Path: cell.Path, NVLinks: cell.NVLinks, GBps: float64(cell.NVLinks) * spec.GBps}
		if l.NVLinks > 0 {
			l.Switched = switched[i] && switched[j]
		} else {
			l.GBps = PCIe(l.Path, defaultPCIe)
		}
		return l
	})
}

// PCIe is about what two GPUs have between them on PCIe, in GB/s, if each has the
// bandwidth.
func PCIe(path Path, bandwidth float64) float64 { return bandwidth * share[path] }

// Len is the number of GPUs.
func (g *Graph) Len() int { return g.n }

// All is the set of all GPUs.
func (g *Graph) All() Set { return 1<<g.n - 1 }

// Link gives the connection of two GPUs.
func (g *Graph) Link(i, j int) Link { return g.links[i*g.n+j] }

// NUMA gives the NUMA node of the GPU, -1 if it is not known.
func (g *Graph) NUMA(i int) int { return g.numa[i] }

// numaNodes gives the GPUs of each NUMA node, in the order of their first GPUs.
func (g *Graph) numaNodes() []Set {
	var out []Set
	var seen []int
	for i, numa := range g.numa {
		at := slices.Index(seen, numa)
		if at < 0 {
			at = len(seen)
			seen, out = append(seen, numa), append(out, 0)
		}
		out[at] |= SetOf(i)
	}
	return out
}

// oneNUMA tells whether all of the set are on the same NUMA node, which is known.
func (g *Graph) oneNUMA(s Set) bool {
	at := -1
	for ; s != 0; s &= s - 1 {
		numa := g.numa[bits.TrailingZeros32(uint32(s))]
		if numa < 0 || at >= 0 && numa != at {
			return false
		}
		at = numa
	}
	return true
}

// key is the same for graphs that are the same.
func (g *Graph) key() string {
	out := make([]byte, 0, g.n*(g.n+1)*8)
	for _, numa := range g.numa {
		out = binary.AppendVarint(out, int64(numa))
	}
	for i := range g.n {
		for j := i + 1; j < g.n; j++ {
			l := g.Link(i, j)
			switched := byte(0)
			if l.Switched {
				switched = 1
			}
			out = append(out, byte(l.Path), switched)
			out = binary.AppendUvarint(out, uint64(l.NVLinks))
			out = binary.AppendUvarint(out, math.Float64bits(l.GBps))
		}
	}
	return string(out)
}
