package gang

import (
	"cmp"
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
	// Excluded nodes are not used, by node number; nil: none.
	Excluded []bool
}

// Plan is a node for each seat.
type Plan struct {
	// Nodes are node numbers, by seat; -1 for an optional seat without a place.
	Nodes []int
	// Level and Domain name the narrowest domain that holds everything.
	Level, Domain string
}

// Planner places gangs. It only keeps buffers between calls, so that large
// clusters cost few allocations; the zero value is ready. It is not for
// concurrent use.
type Planner struct {
	s    *Snapshot
	r    *Request
	free []int64 // what is left, like Snapshot.Free, as seats are placed

	classes []demand // those that must be placed, hardest first
	caps    []int    // room per node for the class at hand
	allowed []bool   // nodes that may be used in the domain at hand; nil: all
	gpuFree []int64  // free GPUs before each node, summed: a domain's are a difference
	used    []int32  // pods of the class at hand that this plan has put on the node
	steps   int      // of search that are left
}

// demand is a number of seats of one class.
type demand struct {
	class ClassID
	n     int
	seats []int // indices into Request.Seats, in the order in which they are neighbours
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
//  3. the least damage: the domain, and the nodes in it, that leave the fewest
//     free GPUs behind; pods without GPUs go to nodes without any;
//  4. the lowest node numbers.
func (p *Planner) Place(s *Snapshot, r *Request) (*Plan, *Unschedulable) {
	p.begin(s, r)
	narrowest, widest := p.levels()
	if homes := p.homes(widest); homes > 1 && widest > 0 {
		return nil, p.scattered(widest, homes)
	}
	for depth := narrowest; depth >= widest; depth-- {
		for _, domain := range p.candidates(depth) {
			if plan := p.in(depth, domain); plan != nil {
				p.optional(plan, depth, domain, widest)
				p.title(plan)
				return plan, nil
			}
		}
	}
	return nil, p.explain(widest)
}

// begin sorts the seats into demands and copies what is free.
func (p *Planner) begin(s *Snapshot, r *Request) {
	p.s, p.r = s, r
	p.classes = demands(s, r.Seats, false)
	p.allowed, p.steps = nil, searchSteps
	p.gpuFree = slices.Grow(p.gpuFree[:0], s.Tree.Len()+1)[:s.Tree.Len()+1]
	p.gpuFree[0] = 0
	for n := range s.Tree.Len() {
		p.gpuFree[n+1] = p.gpuFree[n] + max(0, s.gpus(s.Free, n))
	}
	p.caps = slices.Grow(p.caps[:0], s.Tree.Len())[:s.Tree.Len()]
	p.used = slices.Grow(p.used[:0], s.Tree.Len())[:s.Tree.Len()]
}

// gpus gives the GPUs of the node in a list like Free.
func (s *Snapshot) gpus(list []int64, node int) int64 {
	if s.GPU < 0 {
		return 0
	}
	return list[node*len(s.Resources)+s.GPU]
}

// wantsGPUs tells whether pods of the class take GPUs.
func (s *Snapshot) wantsGPUs(class ClassID) bool {
	return s.GPU >= 0 && s.Classes[class].Request[s.GPU] > 0
}

// demands groups the seats by class, hardest first: by GPUs, then by the number
// of nodes that come into question, then by size.
func demands(s *Snapshot, seats []Seat, optional bool) []demand {
	order := make([]int, 0, len(seats))
	for i := range seats {
		if seats[i].Optional == optional {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &seats[a], &seats[b]
		return cmp.Or(cmp.Compare(x.Role, y.Role), cmp.Compare(x.Rank, y.Rank), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	index := map[ClassID]int{}
	var out []demand
	for _, i := range order {
		class := seats[i].Class
		at, ok := index[class]
		if !ok {
			at = len(out)
			index[class] = at
			out = append(out, demand{class: class})
		}
		out[at].n++
		out[at].seats = append(out[at].seats, i)
	}
	slices.SortStableFunc(out, func(a, b demand) int { return s.harder(a.class, b.class) })
	return out
}

// harder orders classes, the one that is harder to place first.
func (s *Snapshot) harder(a, b ClassID) int {
	x, y := &s.Classes[a], &s.Classes[b]
	if s.GPU >= 0 {
		if c := cmp.Compare(y.Request[s.GPU], x.Request[s.GPU]); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(ineligible(y), ineligible(x)), slices.Compare(y.Request, x.Request))
}

func ineligible(c *Class) int {
	n := 0
	for _, count := range c.Ineligible {
		n += count.N
	}
	return n
}

// levels gives the depths between which a domain is sought.
func (p *Planner) levels() (narrowest, widest int) {
	t := p.s.Tree
	widest, _ = t.Depth(topology.Cluster)
	if depth, ok := t.Depth(p.r.Required); ok {
		widest = depth
	}
	narrowest = widest
	if depth, ok := t.Depth(p.r.Preferred); ok {
		return max(depth, widest), widest
	}
	for _, seat := range p.r.Seats {
		if p.s.wantsGPUs(seat.Class) {
			return t.Depths() - 1, widest
		}
	}
	return narrowest, widest
}

// homes counts the domains of a level that hold running members.
func (p *Planner) homes(depth int) int {
	homes := map[int]bool{}
	for _, n := range p.r.Fixed {
		homes[p.s.Tree.Domain(depth, n)] = true
	}
	return len(homes)
}

// candidates gives the domains of a level that come into question, the best
// first: those where most members run already, then those with the fewest free
// GPUs. Domains without enough room for some class are left out.
func (p *Planner) candidates(depth int) []int {
	t := p.s.Tree
	here := make([]int, t.Domains(depth))
	for _, n := range p.r.Fixed {
		here[t.Domain(depth, n)]++
	}
	wanted := 0
	if len(p.r.Fixed) > 0 {
		wanted = 1 // only domains with members in them are near
	}
	roomy := p.roomy(depth)
	out := make([]int, 0, len(here))
	for domain, members := range here {
		if members >= wanted && roomy[domain] {
			out = append(out, domain)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int {
		return cmp.Or(cmp.Compare(here[b], here[a]), cmp.Compare(p.gpusIn(depth, a), p.gpusIn(depth, b)))
	})
	return out
}

// gpusIn counts the free GPUs of a domain before anything is placed.
func (p *Planner) gpusIn(depth, domain int) int64 {
	from, to := p.s.Tree.Interval(depth, domain)
	return p.gpuFree[to] - p.gpuFree[from]
}

// roomy tells which domains of a level have room for each class by itself, which
// is necessary and, with one class, enough.
func (p *Planner) roomy(depth int) []bool {
	t := p.s.Tree
	out := make([]bool, t.Domains(depth))
	for i := range out {
		out[i] = true
	}
	p.reset()
	for _, d := range p.classes {
		p.measure(d.class, 0, t.Len())
		for domain := range out {
			from, to := t.Interval(depth, domain)
			out[domain] = out[domain] && sum(p.caps[from:to]) >= d.n
		}
	}
	return out
}

func sum(list []int) int {
	total := 0
	for _, n := range list {
		total += n
	}
	return total
}

// reset makes everything free again that this plan has taken so far.
func (p *Planner) reset() {
	p.free = append(p.free[:0], p.s.Free...)
	clear(p.used)
}

// in places everything that must be placed inside the domain, or gives nil.
func (p *Planner) in(depth, domain int) *Plan {
	p.allowed = nil
	plan := p.spread(depth, domain)
	used := -1
	if plan != nil {
		used = p.childrenUsed(plan, depth, domain)
	}
	if len(p.classes) < 2 || used == 1 {
		return plan
	}
	return p.better(plan, used, depth, domain)
}

// spread places class by class, the hardest first.
func (p *Planner) spread(depth, domain int) *Plan {
	p.reset()
	plan := p.newPlan()
	for _, d := range p.classes {
		clear(p.used)
		if !p.distribute(plan, d.class, d.seats, depth, domain) {
			return nil
		}
	}
	return plan
}

func (p *Planner) newPlan() *Plan {
	plan := &Plan{Nodes: make([]int, len(p.r.Seats))}
	for i := range plan.Nodes {
		plan.Nodes[i] = -1
	}
	return plan
}

// put gives a seat its node.
func (p *Planner) put(plan *Plan, seat, node int) {
	plan.Nodes[seat] = node
	class := &p.s.Classes[p.r.Seats[seat].Class]
	width := len(p.s.Resources)
	row := p.free[node*width : (node+1)*width]
	for r, n := range class.Request {
		row[r] -= n
	}
	p.used[node]++
}

// optional places the optional seats that fit, near the others, within the widest
// level that is allowed.
func (p *Planner) optional(plan *Plan, depth, domain, widest int) {
	p.allowed = nil
	p.take(plan)
	for _, d := range demands(p.s, p.r.Seats, true) {
		p.settleClass(plan, d.class)
		rest := d.seats
		at, node := depth, 0
		if from, to := p.s.Tree.Interval(depth, domain); from < to {
			node = from
		}
		for ; at >= widest && len(rest) > 0; at-- {
			here := p.s.Tree.Domain(at, node)
			from, to := p.s.Tree.Interval(at, here)
			p.measure(d.class, from, to)
			n := min(len(rest), sum(p.caps[from:to]))
			if n > 0 && p.distribute(plan, d.class, rest[:n], at, here) {
				rest = rest[n:]
			}
		}
	}
}

// take makes what is free that which the plan leaves.
func (p *Planner) take(plan *Plan) {
	p.reset()
	width := len(p.s.Resources)
	for seat, node := range plan.Nodes {
		if node < 0 {
			continue
		}
		for r, n := range p.s.Classes[p.r.Seats[seat].Class].Request {
			p.free[node*width+r] -= n
		}
	}
}

// settleClass counts where the plan has put pods of the class.
func (p *Planner) settleClass(plan *Plan, class ClassID) {
	clear(p.used)
	for seat, node := range plan.Nodes {
		if node >= 0 && p.r.Seats[seat].Class == class {
			p.used[node]++
		}
	}
}

// title names the narrowest domain that holds the plan and the running members.
func (p *Planner) title(plan *Plan) {
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
		return
	}
	for depth := t.Depths() - 1; depth >= 0; depth-- {
		// Domains are intervals: what holds both ends holds all between.
		if domain := t.Domain(depth, low); domain == t.Domain(depth, high) {
			plan.Level, plan.Domain = t.LevelName(depth), t.DomainName(depth, domain)
			return
		}
	}
}
