package gang

import (
	"slices"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// Seat is a pod, or with an empty UID a pod to come, that wants a node.
type Seat struct {
	UID   string
	Name  string
	Role  string
	Class ClassID
	Rank  int // position among its siblings; -1 if unknown
	// Optional seats are placed only where everything else is.
	Optional bool
}

// Request is what Place is asked to place together.
type Request struct {
	Gang  Key
	Seats []Seat
	// Fixed are the nodes of members that run already: the seats go near them,
	// and a required domain must hold them too.
	Fixed []int
	// Required is the level of which one domain must hold everything, Preferred
	// the narrowest level worth seeking; level names, empty for none. By default
	// seats with GPUs seek one host, and others do not care.
	Required, Preferred string
	// Slice is how many members, neighbours by rank, must be in one domain: see
	// slice.go; 0 or 1: they do not come in slices.
	Slice int
	// Excluded nodes are not used, by node number; nil: none.
	Excluded []bool
}

// Plan is a node for each seat.
type Plan struct {
	// Nodes are node numbers, by seat; -1 for an optional seat without a place.
	Nodes []int
	// GPUs are what the seats may get, by seat; nil if nothing is known of links.
	GPUs []Assignment
	// Level and Domain name the narrowest domain that holds everything.
	Level, Domain string
}

// Planner places gangs. It only keeps buffers between calls, so that large
// clusters cost few allocations; the zero value is ready. It is not for
// concurrent use.
type Planner struct {
	s *Snapshot
	r *Request

	classes []demand // those that must be placed, hardest first
	scarce  []demand // the same, those with the least room to spare first
	// Depths between which a domain is sought: the widest that is allowed and the
	// narrowest that is worth it.
	widest, narrowest int
	roomy             [][]bool // by depth, domain: it may hold everything
	gpus              []tally  // of the nodes before each node: a domain's are a difference

	// linked tells that something is known of the nodes' GPUs; aim is how well they
	// must be connected, and blind that this does not matter for a moment.
	linked, blind bool
	aim           aim
	base, sets    []topology.Set // by node: what may be free, before and with this plan

	// What is left as seats are placed. Each attempt works on an interval of nodes
	// and makes only that fresh.
	nodes   []int   // by seat; -1 for none
	kept    []int   // nodes of the best attempt so far
	free    []int64 // like Snapshot.Free
	used    []int32 // pods of the class at hand, by node
	allowed []bool  // by node; heeded only while narrowed is set
	// narrowed tells that only allowed nodes may be used.
	narrowed bool
	steps    int // of search that are left

	// Buffers.
	caps  []int   // room per node for the class at hand
	sums  []int64 // of something over the nodes before each node
	here  []int   // running members by domain
	rooms []int   // of the children of a domain
	class ClassID // that is distributed
	// sliceAt is by class the depth of its slice level, plus one; 0: it does not come
	// in slices. whole tells that this does not matter for a moment.
	sliceAt []int
	whole   bool
	order   []int
	parts   []part
	spots   []spot
	list    []candidate
}

// Place plans with a Planner of its own.
func Place(s *Snapshot, r *Request) (*Plan, *Unschedulable) {
	return new(Planner).Place(s, r)
}

// Place finds a node for each seat, or says why there is none for them together.
// The snapshot is not changed. What it prefers, in this order:
//
//  1. what is required holds: resources, eligibility, the required level;
//  2. the narrowest level of which one domain holds everything, from the preferred
//     level on; below it the fewest domains, in equal slices above the host level,
//     with neighbours by rank;
//  3. of what is known of the links between a node's GPUs, the preferred kind, then
//     the highest ring, of the pod that has the least and in the worst case;
//  4. the least damage: the domain, and the nodes in it, that leave the fewest
//     free GPUs behind, in wider domains that are not whole any more; nodes whose
//     free GPUs lose the least worth (topology.Table); pods without GPUs go to
//     nodes without any;
//  5. the lowest node numbers.
func (p *Planner) Place(s *Snapshot, r *Request) (*Plan, *Unschedulable) {
	p.begin(s, r)
	if homes := p.homes(p.widest); homes > 1 && p.widest > 0 {
		return nil, p.scattered(homes)
	}
	for depth := p.narrowest; depth >= p.widest; depth-- {
		if domain, ok := p.best(depth, p.candidates(depth)); ok && p.keepsLinks() {
			domain = p.improve(depth, domain)
			p.optional(depth, domain)
			return p.plan(), nil
		}
	}
	return nil, p.explain()
}

// best places everything in that of the candidates where it uses the fewest
// children, of equal ones in the first by order, and tells which it is.
func (p *Planner) best(depth int, list []candidate) (domain int, ok bool) {
	p.bound(depth, list)
	var found candidate // with the children that are used as its bound
	for i := range list {
		// The first one nearly always does, so the others are sorted only after it.
		switch i {
		case 0:
			p.foremost(depth, list)
		case 1:
			slices.SortFunc(list[1:], func(a, b candidate) int { return p.compare(depth, a, b) })
		}
		c := list[i]
		if found.fewest > 0 && (c.here < found.here || c.fewest >= found.fewest) {
			break
		}
		used := p.in(depth, c.domain)
		if used == 0 || (found.fewest > 0 && used >= found.fewest) {
			continue
		}
		if used <= c.fewest {
			return c.domain, true
		}
		found = candidate{domain: c.domain, here: c.here, fewest: used}
		p.kept = append(p.kept[:0], p.nodes...)
	}
	if found.fewest > 0 {
		copy(p.nodes, p.kept)
	}
	return found.domain, found.fewest > 0
}

// plan copies what was found.
func (p *Planner) plan() *Plan {
	plan := &Plan{Nodes: slices.Clone(p.nodes), GPUs: p.assignments()}
	t := p.s.Tree
	low, high := t.Len(), -1
	for _, list := range [][]int{plan.Nodes, p.r.Fixed} {
		for _, n := range list {
			if n >= 0 {
				low, high = min(low, n), max(high, n)
			}
		}
	}
	if high < 0 {
		return plan
	}
	depth := t.Depths() - 1
	// Domains are intervals: what holds both ends holds all between.
	for t.Domain(depth, low) != t.Domain(depth, high) {
		depth--
	}
	plan.Level, plan.Domain = t.LevelName(depth), t.DomainName(depth, t.Domain(depth, low))
	return plan
}

// in places everything that must be placed inside the domain, as well as it can,
// and gives the number of its children that are used: 0 if it could not.
func (p *Planner) in(depth, domain int) int {
	found := p.greedy(depth, domain)
	if len(p.classes) < 2 || depth == p.s.Tree.Depths()-1 {
		return p.childrenUsed(found, depth, domain) // which is exact
	}
	used := p.childrenUsed(found, depth, domain)
	switch {
	case used == 1 || (found && !p.caring()):
		return used
	case !p.caring():
		from, to := p.s.Tree.Interval(depth, domain)
		return p.childrenUsed(p.search(from, to), depth, domain)
	}
	return p.better(used, depth, domain)
}

// greedy places class by class, in several ways if need be.
func (p *Planner) greedy(depth, domain int) bool {
	if p.spread(p.classes, depth, domain, p.caring()) {
		return true
	}
	return len(p.classes) > 1 && depth < p.s.Tree.Depths()-1 &&
		(p.spread(p.classes, depth, domain, false) || p.spread(p.scarce, depth, domain, false))
}

// spread places class by class in the order given: if near is set, in the children
// of the domain that the classes before it use already, if those have the room.
func (p *Planner) spread(classes []demand, depth, domain int, near bool) bool {
	from, to := p.s.Tree.Interval(depth, domain)
	p.reset(from, to)
	for i, d := range classes {
		clear(p.used[from:to])
		if near && i > 0 && p.beside(d, depth, domain) {
			continue
		}
		if !p.distribute(d.class, d.seats, depth, domain) {
			return false
		}
	}
	return true
}

// beside places the class in the children of the domain that hold seats already.
func (p *Planner) beside(d demand, depth, domain int) bool {
	t := p.s.Tree
	if depth == t.Depths()-1 {
		return false
	}
	from, to := t.Interval(depth, domain)
	clear(p.allowed[from:to])
	for _, n := range p.nodes {
		if n >= 0 && !p.allowed[n] {
			first, end := t.Interval(depth+1, t.Domain(depth+1, n))
			for m := first; m < end; m++ {
				p.allowed[m] = true
			}
		}
	}
	p.narrowed = true
	ok := p.distribute(d.class, d.seats, depth, domain)
	p.narrowed = false
	return ok
}

// reset makes everything in the interval free again that this plan has taken so
// far, which must have been in the interval.
func (p *Planner) reset(from, to int) {
	width := len(p.s.Resources)
	copy(p.free[from*width:to*width], p.s.Free[from*width:to*width])
	if p.linked {
		copy(p.sets[from:to], p.base[from:to])
	}
	clear(p.used[from:to])
	for i := range p.nodes {
		p.nodes[i] = -1
	}
}

// put gives a seat its node.
func (p *Planner) put(seat, node int) {
	p.nodes[seat] = node
	width := len(p.s.Resources)
	row := p.free[node*width : (node+1)*width]
	request := p.s.Classes[p.r.Seats[seat].Class].Request
	for r, n := range request {
		row[r] -= n
	}
	p.used[node]++
	if k, ok := p.s.whole(node, request); ok {
		p.sets[node] = p.s.NodeGPUs[node].Table.After(p.sets[node], k, p.s.NodeGPUs[node].Rule)
	}
}

// optional places the optional seats that fit: in the domain that holds the others,
// then ever further away, up to the widest level that is allowed.
func (p *Planner) optional(depth, domain int) {
	t := p.s.Tree
	node, end := t.Interval(depth, domain)
	if node == end {
		return
	}
	surplus := demands(p.s, p.r.Seats, true)
	p.whole = true // they come one by one
	if len(surplus) > 0 {
		p.retake()
	}
	for _, d := range surplus {
		p.count(d.class)
		rest := d.seats
		for at := depth; at >= p.widest && len(rest) > 0; at-- {
			here := t.Domain(at, node)
			from, to := t.Interval(at, here)
			n := min(len(rest), p.measure(d.class, from, to))
			if n > 0 && p.distribute(d.class, rest[:n], at, here) {
				rest = rest[n:]
			}
		}
	}
}

// retake makes everything free but what is placed: attempts that failed may have
// left their marks elsewhere.
func (p *Planner) retake() {
	copy(p.free, p.s.Free)
	copy(p.sets, p.base)
	for seat, node := range p.nodes {
		if node >= 0 {
			p.put(seat, node)
		}
	}
}

// count finds where pods of the class are placed already.
func (p *Planner) count(class ClassID) {
	clear(p.used)
	for seat, node := range p.nodes {
		if node >= 0 && p.r.Seats[seat].Class == class {
			p.used[node]++
		}
	}
}
