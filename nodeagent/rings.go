package nodeagent

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// rings tells, a line for each number of GPUs, the highest ring that free GPUs of
// the node can have, and how many sets have it; "" where no two are free.
func rings(inv *Inventory, free map[int]bool) string {
	place := map[int]int{} // by NVML's index
	var numa []int
	var set topology.Set
	for i, g := range inv.GPUs {
		place[g.Index] = i
		numa = append(numa, g.NUMA)
		if free[g.Index] {
			set |= topology.SetOf(i)
		}
	}
	links := map[[2]int]topology.Link{}
	for _, l := range inv.Links {
		a, b := place[l.A], place[l.B]
		links[[2]int{min(a, b), max(a, b)}] = l.Link
	}
	graph, err := topology.NewGraph(numa, func(i, j int) topology.Link { return links[[2]int{min(i, j), max(i, j)}] })
	if err != nil {
		return fmt.Sprintf("not ranked: %v\n", err)
	}
	table := topology.NewTable(graph)
	type best struct {
		ring      float64
		with, all int
	}
	of := make([]best, graph.Len()+1)
	for s := set; s != 0; s = (s - 1) & set {
		b := &of[bits.OnesCount32(uint32(s))]
		b.all++
		switch ring := table.Ring(s); {
		case ring > b.ring:
			b.ring, b.with = ring, 1
		case ring == b.ring:
			b.with++
		}
	}
	var out strings.Builder
	for k, b := range of {
		if k >= 2 && b.all > 0 {
			fmt.Fprintf(&out, "%2d GPUs: %.1f GB/s, %d of %d sets\n", k, b.ring, b.with, b.all)
		}
	}
	return out.String()
}
