package gang

import (
	"math"
	"math/bits"
)

// Gangs of several classes are a bin packing problem with several sizes: placing
// the hardest class first nearly always works, and where it does not, these
// searches find what is there to be found on clusters small enough for it.
const (
	searchSteps  = 200_000 // of search, in one call of Place
	maxClasses   = 8       // for which search is tried
	maxChildren  = 12      // of a domain, of which all combinations are tried
	subsetTries  = 64      // combinations tried where there are many nodes
	fewNodes     = 64
	maxOfOneKind = math.MaxUint16
)

// childrenUsed counts the domains of the next narrower level that the plan uses.
func (p *Planner) childrenUsed(plan *Plan, depth, domain int) int {
	t := p.s.Tree
	if depth == t.Depths()-1 {
		return 1
	}
	first, end := t.Children(depth, domain)
	used := make([]bool, end-first)
	n := 0
	for _, node := range plan.Nodes {
		if node < 0 {
			continue
		}
		if c := t.Domain(depth+1, node) - first; !used[c] {
			used[c] = true
			n++
		}
	}
	return n
}

// better looks for a plan that uses fewer children of the domain than the one at
// hand does, which may be none at all.
func (p *Planner) better(plan *Plan, used, depth, domain int) *Plan {
	t := p.s.Tree
	if depth == t.Depths()-1 || len(p.classes) > maxClasses {
		return plan
	}
	if p.steps == 0 {
		return plan
	}
	first, end := t.Children(depth, domain)
	from, to := t.Interval(depth, domain)
	if end-first > maxChildren {
		if plan == nil {
			plan = p.search(from, to)
		}
		return plan
	}
	room := p.roomByChild(depth, first, end)
	tries := subsetTries
	if to-from <= fewNodes {
		tries = 1 << maxChildren
	}
	limit := end - first
	if plan != nil {
		limit = used - 1
	}
	for size := 1; size <= limit; size++ {
		for set := range uint(1) << (end - first) {
			if bits.OnesCount(set) != size || !p.enough(room, set) {
				continue
			}
			if tries--; tries < 0 {
				return plan
			}
			if found := p.within(set, depth, domain, first); found != nil {
				return found
			}
		}
	}
	return plan
}

// roomByChild gives, for each class, the room in each child domain by itself.
func (p *Planner) roomByChild(depth, first, end int) [][]int {
	t := p.s.Tree
	p.reset()
	out := make([][]int, len(p.classes))
	for i, d := range p.classes {
		for c := first; c < end; c++ {
			from, to := t.Interval(depth+1, c)
			p.measure(d.class, from, to)
			out[i] = append(out[i], sum(p.caps[from:to]))
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
		if n < d.n {
			return false
		}
	}
	return true
}

// within plans on the children of the domain that are in the set, and no others.
func (p *Planner) within(set uint, depth, domain, first int) *Plan {
	t := p.s.Tree
	from, to := t.Interval(depth, domain)
	p.allowed = make([]bool, t.Len())
	for n := from; n < to; n++ {
		p.allowed[n] = set&(1<<(t.Domain(depth+1, n)-first)) != 0
	}
	defer func() { p.allowed = nil }()
	if plan := p.spread(depth, domain); plan != nil {
		return plan
	}
	return p.search(from, to)
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
func (p *Planner) search(from, to int) *Plan {
	var want rest
	for i, d := range p.classes {
		if d.n > maxOfOneKind {
			return nil
		}
		want[i] = uint16(d.n)
	}
	p.reset()
	s := &searching{p: p, to: to, dead: map[state]bool{}, took: make([]rest, to-from), from: from}
	if !s.node(from, want) {
		return nil
	}
	plan := p.newPlan()
	for i, d := range p.classes {
		seats := d.seats
		for n, took := range s.took {
			for range took[i] {
				plan.Nodes[seats[0]] = from + n
				seats = seats[1:]
			}
		}
	}
	return plan
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
	if n == s.to || s.dead[at] || s.p.steps == 0 {
		return false
	}
	s.p.steps--
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
