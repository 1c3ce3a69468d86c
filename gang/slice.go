package gang

import (
	"cmp"
	"fmt"
	"slices"
)

// Slices are members that work closely together, such as those of one tensor-parallel
// group: neighbours by rank, so many each, and each slice in one domain of the slice
// level. That is the narrowest level of which some domain would hold a slice if
// nothing ran there: a host for small ones, an NVLink clique or a rack for others.
//
// What a domain of the slice level takes is a whole number of slices, and so is what
// wider ones take.

// sliceDepth finds the slice level of a class; it gives false if no domain could ever
// hold a slice.
func (p *Planner) sliceDepth(class ClassID) (int, bool) {
	t := p.s.Tree
	c := &p.s.Classes[class]
	for depth := t.Depths() - 1; depth >= 0; depth-- {
		for domain := range t.Domains(depth) {
			room := 0
			for n, end := t.Interval(depth, domain); n < end; n++ {
				if room += p.whenEmpty(c, n); room >= p.r.Slice {
					return depth, true
				}
			}
		}
	}
	return 0, false
}

// sliced tells whether the seats come in slices: members that run already had theirs,
// and what replaces them need not make a whole one.
func (p *Planner) sliced(seats int) bool {
	return p.r.Slice > 1 && len(p.r.Fixed) == 0 && seats%p.r.Slice == 0
}

// findSlices finds the slice level of each class that comes in slices.
func (p *Planner) findSlices() {
	p.sliceAt = resize(p.sliceAt, len(p.s.Classes))
	clear(p.sliceAt)
	p.whole = false
	for _, d := range p.classes {
		if p.sliced(len(d.seats)) {
			if depth, ok := p.sliceDepth(d.class); ok {
				p.sliceAt[d.class] = depth + 1
			}
		}
	}
}

// trim lowers caps in the domains of the slice level that lie in the interval, so that
// each has room for whole slices, from the nodes with the least room on. It gives the
// sum of the caps.
func (p *Planner) trim(class ClassID, from, to, total int) int {
	t := p.s.Tree
	depth := p.sliceAt[class] - 1
	if depth < 0 || p.whole {
		return total
	}
	for at := from; at < to; {
		first, end := t.Interval(depth, t.Domain(depth, at))
		if first >= from && end <= to {
			excess := sum(p.caps[first:end]) % p.r.Slice
			p.trimDomain(first, end, excess)
			total -= excess
		} // else a part of a domain, of which a search takes single nodes
		at = end
	}
	return total
}

func (p *Planner) trimDomain(first, end, excess int) {
	if excess == 0 {
		return
	}
	p.order = p.order[:0]
	for n := first; n < end; n++ {
		if p.caps[n] > 0 {
			p.order = append(p.order, n)
		}
	}
	slices.SortFunc(p.order, func(a, b int) int { return cmp.Or(cmp.Compare(p.caps[a], p.caps[b]), cmp.Compare(b, a)) })
	for _, n := range p.order {
		take := min(excess, p.caps[n])
		p.caps[n] -= take
		if excess -= take; excess == 0 {
			return
		}
	}
}

// unit is in what numbers domains of the depth are given seats of the class at hand.
func (p *Planner) unit(depth int) int {
	if at := p.sliceAt[p.class] - 1; at >= 0 && depth <= at && !p.whole {
		return p.r.Slice
	}
	return 1
}

// shortOfSlices says that there would be room for the class if it did not come in
// slices, or gives nil.
func (p *Planner) shortOfSlices(d demand, have int) *Unschedulable {
	depth := p.sliceAt[d.class] - 1
	if depth < 0 {
		return nil
	}
	p.whole = true
	clear(p.used)
	could := p.measure(d.class, 0, p.s.Tree.Len())
	p.whole = false
	if could < len(d.seats) {
		return nil
	}
	return &Unschedulable{Code: CodeTopology, Detail: fmt.Sprintf(
		"needs room for %s of %d members with %s, each in one %s; there is room for %d",
		count(len(d.seats)/p.r.Slice, "slice"), p.r.Slice, p.request(&p.s.Classes[d.class], ""), p.s.Tree.LevelName(depth), have/p.r.Slice) + p.left(d)}
}
