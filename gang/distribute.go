package gang

import (
	"cmp"
	"slices"
)

// distribute places the seats, all of one class and neighbours in their order,
// inside the domain. It reports whether it could; if not, some may be placed.
//
// The narrowest domain that holds them all takes them. If that is wider than a
// host, they are split over the fewest of its children: in equal slices over
// domains, and packed on hosts.
func (p *Planner) distribute(plan *Plan, class ClassID, seats []int, depth, domain int) bool {
	t := p.s.Tree
	from, to := t.Interval(depth, domain)
	p.measure(class, from, to)
	if sum(p.caps[from:to]) < len(seats) {
		return false
	}
	if !p.caring() {
		p.fill(plan, class, seats, from, to)
		return true
	}
	p.descend(plan, class, seats, depth, domain)
	return true
}

// caring tells whether the gang wants to be close together at all.
func (p *Planner) caring() bool {
	narrowest, widest := p.levels()
	return narrowest > 0 || widest > 0
}

// descend places the seats in the domain, for which caps are measured and enough.
func (p *Planner) descend(plan *Plan, class ClassID, seats []int, depth, domain int) {
	t := p.s.Tree
	host := t.Depths() - 1
	depth, domain = p.narrow(class, len(seats), depth, domain)
	if depth == host {
		node, _ := t.Interval(host, domain)
		p.caps[node] -= len(seats)
		for _, seat := range seats {
			p.put(plan, seat, node)
		}
		return
	}
	for _, part := range p.split(class, len(seats), depth, domain) {
		p.descend(plan, class, seats[:part.n], depth+1, part.domain)
		seats = seats[part.n:]
	}
}

// narrow finds the narrowest domain inside the given one that holds n pods: of
// those of one level the one with the least room to spare.
func (p *Planner) narrow(class ClassID, n, depth, domain int) (int, int) {
	t := p.s.Tree
	from, to := t.Interval(depth, domain)
	for d := t.Depths() - 1; d > depth; d-- {
		best, spare := -1, damage{}
		for c := t.Domain(d, from); c <= t.Domain(d, to-1); c++ {
			first, end := t.Interval(d, c)
			if sum(p.caps[first:end]) < n {
				continue
			}
			if s := p.damage(class, first, end); best < 0 || s.less(spare) {
				best, spare = c, s
			}
		}
		if best >= 0 {
			return d, best
		}
	}
	return depth, domain
}

// damage orders places for pods of a class, the smallest first: pods without
// GPUs spare nodes that have some; then what has fewer free GPUs is used first,
// and what has less room for the class.
type damage struct{ gpus, room int64 }

func (d damage) less(o damage) bool {
	return cmp.Or(cmp.Compare(d.gpus, o.gpus), cmp.Compare(d.room, o.room)) < 0
}

func (p *Planner) damage(_ ClassID, from, to int) damage {
	out := damage{room: int64(sum(p.caps[from:to]))}
	for n := from; n < to; n++ {
		out.gpus += max(0, p.s.gpus(p.free, n))
	}
	return out
}

// part is how many pods a child domain takes.
type part struct{ domain, n, room int }

// split divides n pods over the fewest children of the domain, none of which holds
// them all. The parts are in the order of the children.
func (p *Planner) split(class ClassID, n, depth, domain int) []part {
	t := p.s.Tree
	first, end := t.Children(depth, domain)
	parts := make([]part, 0, end-first)
	for c := first; c < end; c++ {
		from, to := t.Interval(depth+1, c)
		if room := sum(p.caps[from:to]); room > 0 {
			parts = append(parts, part{domain: c, room: room})
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.room, a.room) })
	fewest, total := 0, 0
	for total < n {
		total += parts[fewest].room
		fewest++
	}
	if depth+1 == t.Depths()-1 {
		parts = p.pack(class, parts, fewest, n)
	} else {
		parts = slice(parts, fewest, n)
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.domain, b.domain) })
	return parts
}

// pack fills hosts: the roomiest ones in full, and the rest goes to the host that
// it fills best.
func (p *Planner) pack(class ClassID, parts []part, fewest, n int) []part {
	out := slices.Clone(parts[:fewest-1])
	for i := range out {
		out[i].n = out[i].room
		n -= out[i].room
	}
	best, spare := -1, damage{}
	for i := fewest - 1; i < len(parts); i++ {
		if parts[i].room < n {
			break
		}
		node, _ := p.s.Tree.Interval(p.s.Tree.Depths()-1, parts[i].domain)
		if s := p.damage(class, node, node+1); best < 0 || s.less(spare) {
			best, spare = i, s
		}
	}
	last := parts[best]
	last.n = n
	return append(out, last)
}

// slice gives each of the fewest domains an equal share where they have the room
// for it, choosing those with the least to spare; otherwise the roomiest domains
// share as equally as they can. Parts come with the roomiest first.
func slice(parts []part, fewest, n int) []part {
	base, extra := n/fewest, n%fewest
	tight := slices.Clone(parts)
	slices.Reverse(tight) // the least room first
	slices.SortStableFunc(tight, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.room, b.room), cmp.Compare(a.domain, b.domain))
	})
	var out []part
	for _, least := range []struct{ share, count int }{{base + 1, extra}, {base, fewest - extra}} {
		for i := 0; i < len(tight) && least.count > 0; {
			if tight[i].room < least.share {
				i++
				continue
			}
			tight[i].n = least.share
			out = append(out, tight[i])
			tight = slices.Delete(tight, i, i+1)
			least.count--
		}
	}
	if len(out) == fewest {
		return out
	}
	return level(slices.Clone(parts[:fewest]), n)
}

// level shares n over the parts as equally as their room allows.
func level(parts []part, n int) []part {
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.room, b.room) })
	for i := range parts {
		parts[i].n = min(parts[i].room, n/(len(parts)-i))
		n -= parts[i].n
	}
	return parts
}

// spot is a node that a pod may be put on, with what speaks against it.
type spot struct {
	node                    int
	hasGPUs, whole          bool
	freeGPUs, allowed, room int64
}

// fill places seats that do not care for closeness where they do the least
// damage: pods with GPUs where the fewest are free, others on nodes without GPUs,
// then in domains that are not whole any more.
func (p *Planner) fill(plan *Plan, class ClassID, seats []int, from, to int) {
	gpus := p.s.wantsGPUs(class)
	spots := make([]spot, 0, to-from)
	var whole []bool
	if !gpus {
		whole = p.wholes(from, to)
	}
	for n := from; n < to; n++ {
		if p.caps[n] == 0 {
			continue
		}
		s := spot{node: n, freeGPUs: p.s.gpus(p.free, n), room: int64(p.caps[n])}
		if !gpus {
			s.hasGPUs, s.whole = p.s.gpus(p.s.Allocatable, n) > 0, whole[n-from]
		}
		spots = append(spots, s)
	}
	slices.SortStableFunc(spots, func(a, b spot) int {
		return cmp.Or(last(a.hasGPUs, b.hasGPUs), last(a.whole, b.whole), cmp.Compare(a.freeGPUs, b.freeGPUs), cmp.Compare(a.room, b.room))
	})
	for _, s := range spots {
		take := min(int(s.room), len(seats))
		for _, seat := range seats[:take] {
			p.put(plan, seat, s.node)
		}
		if seats = seats[take:]; len(seats) == 0 {
			return
		}
	}
}

// last orders what is so behind what is not.
func last(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// wholes tells of each node in the interval whether its narrowest domain of
// several nodes still has all its GPUs free.
func (p *Planner) wholes(from, to int) []bool {
	t := p.s.Tree
	out := make([]bool, to-from)
	for n := from; n < to; {
		first, end := n, n+1
		for depth := t.Depths() - 2; depth > 0 && end-first < 2; depth-- {
			first, end = t.Interval(depth, t.Domain(depth, n))
		}
		whole := true
		for m := first; m < end; m++ {
			whole = whole && p.s.gpus(p.s.Free, m) >= p.s.gpus(p.s.Allocatable, m)
		}
		for ; n < min(end, to); n++ {
			out[n-from] = whole
		}
	}
	return out
}
