package gang

import (
	"cmp"
	"slices"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// demand is a number of seats of one class.
type demand struct {
	class ClassID
	seats []int // indices into Request.Seats, in the order in which they are neighbours
	room  int   // for how many the cluster has room by itself
}

// begin sorts the seats into demands, makes everything free, and finds out which
// domains are worth a try.
func (p *Planner) begin(s *Snapshot, r *Request) {
	p.s, p.r = s, r
	p.classes = demands(s, r.Seats, false)
	p.steps = searchSteps
	nodes := s.Tree.Len()
	p.free = append(p.free[:0], s.Free...)
	p.nodes = resize(p.nodes, len(r.Seats))
	p.used, p.caps, p.allowed = resize(p.used, nodes), resize(p.caps, nodes), resize(p.allowed, nodes)
	p.sums, p.gpus = resize(p.sums, nodes+1), resize(p.gpus, nodes+1)
	p.parts, p.narrowed = p.parts[:0], false
	p.aim, p.blind, p.linked = aim{}, false, s.NodeGPUs != nil
	p.base, p.sets = p.base[:0], p.sets[:0]
	for n := range s.NodeGPUs {
		p.base = append(p.base, s.NodeGPUs[n].left())
	}
	p.sets = append(p.sets, p.base...)
	p.reset(0, nodes)
	for n := range nodes {
		p.gpus[n+1] = p.gpus[n].add(max(0, s.gpus(s.Free, n)), s.gpus(s.Allocatable, n))
	}
	p.widest, p.narrowest = p.depths()
	p.findSlices()
	p.findRoomy()
	p.scarce = slices.Clone(p.classes)
	slices.SortStableFunc(p.scarce, func(a, b demand) int { return cmp.Compare(a.room*len(b.seats), b.room*len(a.seats)) })
}

// resize gives a list of n, with the old one's memory if that is enough. What is
// in it does not matter.
func resize[E any](list []E, n int) []E { return slices.Grow(list[:0], n)[:n] }

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
	neighbours := func(a, b int) int {
		x, y := &seats[a], &seats[b]
		return cmp.Or(cmp.Compare(x.Role, y.Role), cmp.Compare(x.Rank, y.Rank), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	}
	if !slices.IsSortedFunc(order, neighbours) {
		slices.SortStableFunc(order, neighbours)
	}
	classes := map[ClassID]int{} // how many seats, then the place in out
	for _, i := range order {
		classes[seats[i].Class]++
	}
	if len(classes) == 1 {
		return []demand{{class: seats[order[0]].Class, seats: order}}
	}
	out := make([]demand, 0, len(classes))
	for _, i := range order {
		class := seats[i].Class
		if n := classes[class]; n > 0 {
			out = append(out, demand{class: class, seats: make([]int, 0, n)})
			classes[class] = -len(out)
		}
		d := &out[-classes[class]-1]
		d.seats = append(d.seats, i)
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

// depths gives those between which a domain is sought.
func (p *Planner) depths() (widest, narrowest int) {
	t := p.s.Tree
	widest, _ = t.Depth(topology.Cluster)
	if depth, ok := t.Depth(p.r.Required); ok {
		widest = depth
	}
	if depth, ok := t.Depth(p.r.Preferred); ok {
		return widest, max(depth, widest)
	}
	for _, seat := range p.r.Seats {
		if p.s.wantsGPUs(seat.Class) {
			return widest, t.Depths() - 1
		}
	}
	return widest, widest
}

// caring tells whether the gang wants to be close together at all.
func (p *Planner) caring() bool { return p.narrowest > 0 }
