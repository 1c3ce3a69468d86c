package gang

import (
	"cmp"
	"slices"
)

// tally counts the GPUs of some nodes.
type tally struct{ free, all int64 }

func (t tally) add(free, all int64) tally { return tally{t.free + free, t.all + all} }

// whole tells whether there are GPUs and all of them are free.
func (t tally) whole() bool { return t.all > 0 && t.free >= t.all }

// gpusIn counts the GPUs of a domain before anything is placed.
func (p *Planner) gpusIn(depth, domain int) tally {
	from, to := p.s.Tree.Interval(depth, domain)
	return tally{p.gpus[to].free - p.gpus[from].free, p.gpus[to].all - p.gpus[from].all}
}

// findRoomy finds the domains that have room for each class by itself and as much
// of each resource as all take together: which is necessary, and enough with one
// class or on one host.
func (p *Planner) findRoomy() {
	t := p.s.Tree
	p.roomy = resize(p.roomy, t.Depths())
	for depth := p.widest; depth <= p.narrowest; depth++ {
		p.roomy[depth] = resize(p.roomy[depth], t.Domains(depth))
		for domain := range p.roomy[depth] {
			p.roomy[depth][domain] = true
		}
	}
	for i := range p.classes {
		d := &p.classes[i]
		d.room = p.measure(d.class, 0, t.Len())
		for n, room := range p.caps {
			p.sums[n+1] = p.sums[n] + int64(room)
		}
		p.demandSums(int64(len(d.seats)))
	}
	if len(p.classes) < 2 {
		return
	}
	width := len(p.s.Resources)
	for r, want := range p.total() {
		if want <= 0 {
			continue
		}
		for n := range t.Len() {
			p.sums[n+1] = p.sums[n] + max(0, p.free[n*width+r])
		}
		p.demandSums(want)
	}
}

// demandSums rules out the domains over which sums come to less than what is
// wanted.
func (p *Planner) demandSums(want int64) {
	p.sums[0] = 0
	for depth := p.widest; depth <= p.narrowest; depth++ {
		roomy := p.roomy[depth]
		for domain := range roomy {
			from, to := p.s.Tree.Interval(depth, domain)
			roomy[domain] = roomy[domain] && p.sums[to]-p.sums[from] >= want
		}
	}
}

// total is what everything that must be placed takes, per resource.
func (p *Planner) total() []int64 {
	out := make([]int64, len(p.s.Resources))
	for _, d := range p.classes {
		for r, want := range p.s.Classes[d.class].Request {
			out[r] += want * int64(len(d.seats))
		}
	}
	return out
}

// homes counts the domains of a level that hold running members.
func (p *Planner) homes(depth int) int {
	homes := map[int]bool{}
	for _, n := range p.r.Fixed {
		homes[p.s.Tree.Domain(depth, n)] = true
	}
	return len(homes)
}

// candidate is a domain that comes into question.
type candidate struct {
	domain int
	here   int // running members in it
	fewest int // of its children must be used at least; exact with one class
	loss   float64
}

// candidates gives the domains of a level that may hold everything: if members run
// already, those where some do.
func (p *Planner) candidates(depth int) []candidate {
	t := p.s.Tree
	p.here = resize(p.here, t.Domains(depth))
	clear(p.here)
	for _, n := range p.r.Fixed {
		p.here[t.Domain(depth, n)]++
	}
	out := p.list[:0]
	for domain, roomy := range p.roomy[depth] {
		if !roomy || (p.here[domain] == 0 && len(p.r.Fixed) > 0) {
			continue
		}
		if depth < p.narrowest {
			if first, end := t.Children(depth, domain); end-first == 1 {
				continue // the same nodes as one level down, where they did not do
			}
		}
		c := candidate{domain: domain, here: p.here[domain], fewest: 1}
		if depth == t.Depths()-1 && len(p.classes) > 0 {
			from, _ := t.Interval(depth, domain)
			c.loss = p.loss(p.classes[0].class, from)
		}
		out = append(out, c)
	}
	p.list = out
	return out
}

// bound finds out how many of their children the candidates must use.
func (p *Planner) bound(depth int, list []candidate) {
	t := p.s.Tree
	if len(list) < 2 || depth == t.Depths()-1 || !p.caring() {
		return
	}
	p.reset(0, t.Len())
	for _, d := range p.classes {
		p.measure(d.class, 0, t.Len())
		for i := range list {
			first, end := t.Children(depth, list[i].domain)
			rooms := p.rooms[:0]
			for c := first; c < end; c++ {
				from, to := t.Interval(depth+1, c)
				rooms = append(rooms, sum(p.caps[from:to]))
			}
			slices.Sort(rooms)
			need := len(d.seats)
			fewest := 0
			for ; need > 0; fewest++ {
				need -= rooms[len(rooms)-1-fewest]
			}
			list[i].fewest = max(list[i].fewest, fewest)
			p.rooms = rooms
		}
	}
}

// foremost brings the best candidate to the front.
func (p *Planner) foremost(depth int, list []candidate) {
	best := 0
	for i := range list {
		if p.compare(depth, list[i], list[best]) < 0 {
			best = i
		}
	}
	list[0], list[best] = list[best], list[0]
}

// compare orders candidates of one level, the best first: where most members run
// already, then what need be split over the fewest children, then the host that
// loses the least worth, then what has the fewest free GPUs, then what is broken
// already.
func (p *Planner) compare(depth int, a, b candidate) int {
	x, y := p.gpusIn(depth, a.domain), p.gpusIn(depth, b.domain)
	if c := cmp.Or(cmp.Compare(b.here, a.here), cmp.Compare(a.fewest, b.fewest), cmp.Compare(a.loss, b.loss), cmp.Compare(x.free, y.free), last(x.whole(), y.whole()), cmp.Compare(x.all, y.all)); c != 0 {
		return c
	}
	nodeA, _ := p.s.Tree.Interval(depth, a.domain)
	nodeB, _ := p.s.Tree.Interval(depth, b.domain)
	for depth--; depth > 0; depth-- {
		in, out := p.s.Tree.Domain(depth, nodeA), p.s.Tree.Domain(depth, nodeB)
		if in == out {
			break
		}
		x, y := p.gpusIn(depth, in), p.gpusIn(depth, out)
		if c := cmp.Or(last(x.whole(), y.whole()), cmp.Compare(x.free, y.free)); c != 0 {
			return c
		}
	}
	return cmp.Compare(nodeA, nodeB)
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
