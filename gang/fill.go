package gang

import (
	"cmp"
	"slices"
)

// spot is a node that a pod may be put on, with what speaks against it.
type spot struct {
	node, room     int
	hasGPUs, whole bool
	freeGPUs       int64
	loss           float64
}

// fill places seats that do not care for closeness where they do the least
// damage: pods with GPUs where the fewest are free, others on nodes without GPUs,
// then in domains that are not whole any more.
func (p *Planner) fill(class ClassID, seats []int, from, to int) {
	gpus := p.s.wantsGPUs(class)
	spots := p.spots[:0]
	whole, until := false, from
	for n := from; n < to; n++ {
		if n == until {
			whole, until = p.wholeFrom(n)
		}
		if p.caps[n] > 0 {
			spots = append(spots, spot{
				node: n, room: p.caps[n], whole: whole && !gpus,
				hasGPUs: p.s.gpus(p.s.Allocatable, n) > 0 && !gpus, freeGPUs: max(0, p.s.gpus(p.free, n)), loss: p.loss(class, n),
			})
		}
	}
	p.spots = spots
	slices.SortFunc(spots, func(a, b spot) int {
		return cmp.Or(
			last(a.hasGPUs, b.hasGPUs), last(a.whole, b.whole), cmp.Compare(a.loss, b.loss), cmp.Compare(a.freeGPUs, b.freeGPUs),
			cmp.Compare(a.room, b.room), cmp.Compare(a.node, b.node),
		)
	})
	for _, s := range spots {
		take := min(s.room, len(seats))
		for _, seat := range seats[:take] {
			p.put(seat, s.node)
		}
		if seats = seats[take:]; len(seats) == 0 {
			return
		}
	}
}

// wholeFrom tells whether the narrowest domain of several nodes that begins with or
// holds the node still has all its GPUs free, and with which node it ends.
func (p *Planner) wholeFrom(node int) (whole bool, end int) {
	t := p.s.Tree
	depth := t.Depths() - 1
	first, end := t.Interval(depth, t.Domain(depth, node))
	for ; depth > 1 && end-first < 2; depth-- {
		first, end = t.Interval(depth-1, t.Domain(depth-1, node))
	}
	return tally{p.gpus[end].free - p.gpus[first].free, p.gpus[end].all - p.gpus[first].all}.whole(), end
}
