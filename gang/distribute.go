package gang

import (
	"cmp"
	"slices"
)

// distribute places the seats, all of one class and neighbours in their order,
// inside the domain. If there is no room for all, it places none and says so.
//
// The narrowest domain that holds them all takes them. If that is wider than a
// host, they are split over the fewest of its children: in equal slices over
// domains, and packed on hosts.
func (p *Planner) distribute(class ClassID, seats []int, depth, domain int) bool {
	from, to := p.s.Tree.Interval(depth, domain)
	if p.measure(class, from, to) < len(seats) {
		return false
	}
	p.class = class
	if p.caring() {
		p.descend(seats, depth, domain)
	} else {
		p.fill(class, seats, from, to)
	}
	return true
}

// descend places the seats in the domain, for which caps are measured and enough.
func (p *Planner) descend(seats []int, depth, domain int) {
	t := p.s.Tree
	depth, domain = p.narrow(len(seats), depth, domain)
	if depth == t.Depths()-1 {
		node, _ := t.Interval(depth, domain)
		for _, seat := range seats {
			p.put(seat, node)
		}
		return
	}
	before := len(p.parts)
	for _, part := range p.split(len(seats), depth, domain) {
		p.descend(seats[:part.n], depth+1, part.domain)
		seats = seats[part.n:]
	}
	p.parts = p.parts[:before]
}

// narrow finds the narrowest domain inside the given one that holds n pods: of
// those of one level the one that is damaged least.
func (p *Planner) narrow(n, depth, domain int) (int, int) {
	t := p.s.Tree
	from, to := t.Interval(depth, domain)
	for d := t.Depths() - 1; d > depth; d-- {
		best, least := -1, damage{}
		for c := t.Domain(d, from); c <= t.Domain(d, to-1); c++ {
			first, end := t.Interval(d, c)
			room := sum(p.caps[first:end])
			if room < n {
				continue
			}
			if it := p.damage(first, end, room); best < 0 || it.compare(least) < 0 {
				best, least = c, it
			}
		}
		if best >= 0 {
			return d, best
		}
	}
	return depth, domain
}

// damage orders places, the smallest first: hosts whose free GPUs lose less worth,
// then what has fewer free GPUs, then what has fewer GPUs at all, then what has
// less room.
type damage struct {
	loss float64
	gpus tally
	room int
}

func (d damage) compare(o damage) int {
	return cmp.Or(cmp.Compare(d.loss, o.loss), cmp.Compare(d.gpus.free, o.gpus.free), cmp.Compare(d.gpus.all, o.gpus.all), cmp.Compare(d.room, o.room))
}

// damage is that of the nodes in the interval, with what this plan has taken.
func (p *Planner) damage(from, to, room int) damage {
	d := damage{room: room, gpus: tally{all: p.gpus[to].all - p.gpus[from].all}}
	if to-from == 1 {
		d.loss = p.loss(p.class, from)
	}
	for n := from; n < to; n++ {
		d.gpus.free += max(0, p.s.gpus(p.free, n))
	}
	return d
}

// part is how many pods a child domain takes.
type part struct {
	domain, n int
	damage    damage
}

// split divides n pods over the fewest children of the domain, none of which holds
// them all. The parts are in the order of the children, at the end of p.parts.
func (p *Planner) split(n, depth, domain int) []part {
	t := p.s.Tree
	from, to := t.Interval(depth, domain)
	first, end := t.Children(depth, domain)
	before := len(p.parts)
	for c := first; c < end; c++ {
		from, to := t.Interval(depth+1, c)
		if room := sum(p.caps[from:to]); room > 0 {
			p.parts = append(p.parts, part{domain: c, damage: p.damage(from, to, room)})
		}
	}
	parts := p.parts[before:]
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(b.damage.room, a.damage.room), a.damage.compare(b.damage), cmp.Compare(a.domain, b.domain))
	})
	fewest, total := 0, 0
	for total < n {
		total += parts[fewest].damage.room
		fewest++
	}
	if end-first == to-from {
		parts = pack(parts, fewest, n)
	} else {
		parts = slice(parts, fewest, n, p.unit(depth+1))
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.domain, b.domain) })
	return parts
}

// pack fills hosts: the roomiest ones in full, and the rest goes to the one that
// is damaged least by it.
func pack(parts []part, fewest, n int) []part {
	for i := range fewest - 1 {
		parts[i].n = parts[i].damage.room
		n -= parts[i].n
	}
	best := fewest - 1
	for i := fewest; i < len(parts) && parts[i].damage.room >= n; i++ {
		if parts[i].damage.compare(parts[best].damage) < 0 {
			best = i
		}
	}
	parts[fewest-1] = parts[best]
	parts[fewest-1].n = n
	return parts[:fewest]
}

// slice gives each of the fewest domains an equal share where they have the room
// for it, choosing those with the least to spare; otherwise the roomiest domains
// share as equally as they can. All shares are multiples of the unit, as n is and
// what there is room for. Parts come with the roomiest first.
func slice(parts []part, fewest, n, unit int) []part {
	share, larger := n/unit/fewest*unit, n/unit%fewest // so many domains take one more
	if parts[fewest-1].damage.room < share || (larger > 0 && parts[larger-1].damage.room < share+unit) {
		return level(parts[:fewest], n, unit)
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.damage.room, b.damage.room), a.damage.compare(b.damage), cmp.Compare(a.domain, b.domain))
	})
	take := func(share, count int) {
		for i := 0; count > 0; i++ {
			if parts[i].n == 0 && parts[i].damage.room >= share {
				parts[i].n = share
				count--
			}
		}
	}
	take(share+unit, larger)
	take(share, fewest-larger)
	return slices.DeleteFunc(parts, func(p part) bool { return p.n == 0 })
}

// level shares n over the parts as equally as their room and the unit allow.
func level(parts []part, n, unit int) []part {
	slices.Reverse(parts) // the least room first
	for i := range parts {
		parts[i].n = min(parts[i].damage.room, n/unit/(len(parts)-i)*unit)
		n -= parts[i].n
	}
	return parts
}
