package gang

import (
	"math"
	"math/bits"
	"slices"
)

// Gangs of several classes are a bin packing problem with several sizes: placing
// the hardest class first nearly always works, and where it does not, these
// searches find what is there to be found on clusters small enough for it.
const (
	searchSteps  = 200_000 // of search, in one call of Place
	maxClasses   = 8       // for which search is tried
	maxChildren  = 12      // of a domain, of which all combinations are tried
	maxOfOneKind = math.MaxUint16
)

// childrenUsed counts the domains of the next narrower level that hold seats, if
// a place was found for them. Where it does not matter it is 1.
func (p *Planner) childrenUsed(found bool, depth, domain int) int {
	switch {
	case !found:
		return 0
	case depth == p.s.Tree.Depths()-1 || !p.caring() || len(p.classes) == 0:
		return 1
	}
	first, end := p.s.Tree.Children(depth, domain)
	used := make([]bool, end-first)
	n := 0
	for _, node := range p.nodes {
		if node < 0 {
			continue
		}
		if c := p.s.Tree.Domain(depth+1, node) - first; !used[c] {
			used[c] = true
			n++
		}
	}
	return n
}

// better looks for a plan that uses fewer children of the domain than the one at
// hand does, which may be none at all, and gives how many are used then.
func (p *Planner) better(used, depth, domain int) int {
	first, end := p.s.Tree.Children(depth, domain)
	from, to := p.s.Tree.Interval(depth, domain)
	if end-first > maxChildren {
		if used > 0 {
			return used
		}
		return p.childrenUsed(p.search(from, to), depth, domain)
	}
	before := slices.Clone(p.nodes)
	room := p.roomByChild(depth, first, end)
	limit := end - first
	if used > 0 {
		limit = used - 1
	}
	for size := 1; size <= limit; size++ {
		for set := range uint(1) << (end - first) {
			if bits.OnesCount(set) != size || !p.enough(room, set) {
				continue
			}
			if p.steps -= to - from; p.steps < 0 {
				copy(p.nodes, before)
				return used
			}
			if p.within(set, depth, domain, first) {
				return size
			}
		}
	}
	copy(p.nodes, before)
	return used
}

// roomByChild gives, for each class, the room in each child domain by itself.
func (p *Planner) roomByChild(depth, first, end int) [][]int {
	t := p.s.Tree
	from, _ := t.Interval(depth+1, first)
	_, to := t.Interval(depth+1, end-1)
	p.reset(from, to)
	out := make([][]int, len(p.classes))
	for i, d := range p.classes {
		for c := first; c < end; c++ {
			from, to := t.Interval(depth+1, c)
			out[i] = append(out[i], p.measure(d.class, from, to))
		}
	}
	return out
}

// enough tells whether the set of children has room for each class by itself.
func (p *Planner) enough(room [][]int, set uint) bool {
	for i, d := range p.classes {
		n := 0
		for c, r := range room[i] {
			if set&(1<<c) != 0 {
				n += r
			}
		}
		if n < len(d.seats) {
			return false
		}
	}
	return true
}

// within plans on the children of the domain that are in the set, and no others.
func (p *Planner) within(set uint, depth, domain, first int) bool {
	from, to := p.s.Tree.Interval(depth, domain)
	for n := from; n < to; n++ {
		p.allowed[n] = set&(1<<(p.s.Tree.Domain(depth+1, n)-first)) != 0
	}
	p.narrowed = true
	ok := p.spread(p.classes, depth, domain, false) || p.spread(p.scarce, depth, domain, false) || p.search(from, to)
	p.narrowed = false
	return ok
}

// rest is how many pods of each class are still to be placed.
type rest [maxClasses]uint16

// state is where a search stands: the node it comes to next, and what is left.
type state struct {
	node int
	rest rest
}

// search tries every way to put the classes on the nodes of the interval, up to
// the number of steps that are left. It is exact as long as these last.
func (p *Planner) search(from, to int) bool {
	if len(p.classes) > maxClasses || p.steps <= 0 {
		return false
	}
	var want rest
	for i, d := range p.classes {
		if len(d.seats) > maxOfOneKind {
			return false
		}
		want[i] = uint16(len(d.seats))
	}
	p.reset(from, to)
	s := &searching{p: p, to: to, dead: map[state]bool{}, took: make([]rest, to-from), from: from}
	if !s.node(from, want) {
		return false
	}
	for i, d := range p.classes {
		seats := d.seats
		for n, took := range s.took {
			for range took[i] {
				p.nodes[seats[0]] = from + n
				seats = seats[1:]
			}
		}
	}
	return true
}

type searching struct {
	p        *Planner
	from, to int
	dead     map[state]bool // states that lead nowhere
	took     []rest         // by node
}

// node decides what the node takes, and goes on to the next.
func (s *searching) node(n int, left rest) bool {
	if left == (rest{}) {
		return true
	}
	at := state{n, left}
	if n == s.to || s.dead[at] {
		return false
	}
	if s.class(n, 0, left, rest{}) {
		return true
	}
	s.dead[at] = true
	return false
}

// class decides how many pods of the class, and then of the others, the node
// takes: as many as it can first.
func (s *searching) class(n, i int, left, took rest) bool {
	if i == len(s.p.classes) {
		s.took[n-s.from] = took
		if s.node(n+1, left) {
			return true
		}
		s.took[n-s.from] = rest{}
		return false
	}
	if s.p.steps <= 0 {
		return false
	}
	s.p.steps--
	class := s.p.classes[i].class
	s.p.used[n] = 0
	s.p.measure(class, n, n+1)
	most := min(s.p.caps[n], int(left[i]))
	for k := most; k >= 0; k-- {
		// With the last class, more is never worse.
		if i == len(s.p.classes)-1 && k < most {
			return false
		}
		s.take(n, class, int64(k))
		next, and := left, took
		next[i] -= uint16(k)
		and[i] = uint16(k)
		ok := s.class(n, i+1, next, and)
		s.take(n, class, -int64(k))
		if ok {
			return true
		}
	}
	return false
}

func (s *searching) take(n int, class ClassID, k int64) {
	width := len(s.p.s.Resources)
	row := s.p.free[n*width : (n+1)*width]
	for r, want := range s.p.s.Classes[class].Request {
		row[r] -= k * want
	}
}
