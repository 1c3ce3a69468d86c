package gang

import (
	"cmp"
	"maps"
	"slices"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// NodeGPUs is what is known of one node's GPUs and their links. The zero value is a
// node of which nothing is known: it counts as one without NVLink, and takes no pod
// that requires a link.
type NodeGPUs struct {
	Table *topology.Table
	// Free are the healthy GPUs that nobody uses, as last reported.
	Free topology.Set
	// Taken are pods that came after the report, by the number of their GPUs:
	// which GPUs they get is not known yet.
	Taken []int
	// Rule is how GPUs are chosen there.
	Rule topology.Rule
}

// left is what of the GPUs is free if the device plugin does what is worst.
func (g *NodeGPUs) left() topology.Set {
	free := g.Free
	for _, k := range g.Taken {
		free = g.Table.After(free, k, g.Rule)
	}
	return free
}

// takeGPUs notes that a pod takes GPUs of the node; giveGPUs takes that back.
func (s *Snapshot) takeGPUs(node int, request []int64) {
	if k, ok := s.whole(node, request); ok {
		g := &s.NodeGPUs[node]
		g.Taken = append(slices.Clip(g.Taken), k) // a clone may share it
	}
}

func (s *Snapshot) giveGPUs(node int, request []int64) {
	if k, ok := s.whole(node, request); ok {
		g := &s.NodeGPUs[node]
		if i := slices.Index(g.Taken, k); i >= 0 {
			g.Taken = slices.Delete(slices.Clone(g.Taken), i, i+1)
		}
	}
}

// whole gives how many GPUs the request takes of a node of which they are known.
func (s *Snapshot) whole(node int, request []int64) (int, bool) {
	if s.NodeGPUs == nil || s.GPU < 0 || s.NodeGPUs[node].Table == nil {
		return 0, false
	}
	return int(request[s.GPU]), request[s.GPU] > 0
}

// aim is how well a plan must do by the GPUs' links.
type aim struct {
	// preferred tells that the preferred requirements must hold too.
	preferred bool
	ring      float64 // GB/s of each pod with several GPUs
}

func (a aim) compare(b aim) int {
	if a.preferred != b.preferred {
		return last(a.preferred, b.preferred)
	}
	return cmp.Compare(a.ring, b.ring)
}

// unknownRing is what the ring of a node of which nothing is known counts for: more
// than that of PCIe between sockets, less than that of any NVLink.
const unknownRing = 13

// gpusOf is how many GPUs a pod of the class takes.
func (s *Snapshot) gpusOf(c *Class) int {
	if s.GPU < 0 {
		return 0
	}
	return int(c.Request[s.GPU])
}

// fit is how many more pods of the class get GPUs on the node that are connected as
// they need.
func (p *Planner) fit(c *Class, node int) int {
	const plenty = 1 << 30
	k := p.s.gpusOf(c)
	if k == 0 || p.blind {
		return plenty
	}
	want := p.want(c)
	if !p.linked {
		if k > 1 && want.Requirement != (topology.Requirement{}) {
			return 0
		}
		return plenty
	}
	g := &p.s.NodeGPUs[node]
	switch {
	case g.Table == nil && k > 1 && (want.Requirement != topology.Requirement{} || want.Ring > unknownRing):
		return 0
	case g.Table == nil:
		return plenty
	}
	return g.Table.Fit(p.sets[node], k, g.Rule, want)
}

func (p *Planner) want(c *Class) topology.Want {
	want := topology.Want{Ring: p.aim.ring, Requirement: c.LinkRequired}
	if p.aim.preferred {
		want.Tier = max(want.Tier, c.LinkPreferred.Tier)
		want.OneNUMA = want.OneNUMA || c.LinkPreferred.OneNUMA
	}
	return want
}

// loss is what the node's free GPUs lose in worth when a pod of the class comes.
func (p *Planner) loss(class ClassID, node int) float64 {
	if !p.linked {
		return 0
	}
	k := p.s.gpusOf(&p.s.Classes[class])
	if g := &p.s.NodeGPUs[node]; k > 0 && g.Table != nil {
		return g.Table.Loss(p.sets[node], k, g.Rule)
	}
	return unknownLoss(int(max(0, p.s.gpus(p.free, node))), k)
}

// unknownLoss is loss on a node of which nothing is known but how many GPUs are free:
// as if all were linked alike, by what unknownRing says.
func unknownLoss(free, k int) float64 {
	sets := 0
	for size := 2; size <= free; size *= 2 {
		sets += free/size - max(0, free-k)/size
	}
	return float64(sets * unknownRing)
}

// improve looks for a plan at the same level, over no more children of the domain,
// by which the pods' GPUs are better connected than by the one at hand: first as
// they prefer, then with the highest ring in the worst case.
func (p *Planner) improve(depth, domain int) int {
	if !p.linked {
		return domain
	}
	aims := p.aims()
	if len(aims) == 0 {
		return domain
	}
	used := p.childrenUsed(true, depth, domain)
	before := slices.Clone(p.nodes)
	have := p.achieved()
	for _, a := range aims {
		if a.compare(have) <= 0 {
			break
		}
		p.aim = a
		p.steps = searchSteps
		p.reset(0, p.s.Tree.Len())
		p.findRoomy()
		better, ok := p.best(depth, p.candidates(depth))
		if ok && p.childrenUsed(true, depth, better) <= used && p.keepsLinks() {
			p.aim = aim{}
			return better
		}
	}
	p.aim = aim{}
	copy(p.nodes, before)
	return domain
}

// aims are what is worth trying, the best first.
func (p *Planner) aims() []aim {
	var rings []float64
	prefers := false
	seen := map[*topology.Table]bool{}
	for _, d := range p.classes {
		c := &p.s.Classes[d.class]
		k := p.s.gpusOf(c)
		if k < 2 {
			continue
		}
		prefers = prefers || c.LinkPreferred != topology.Requirement{}
		clear(seen)
		for i := range p.s.NodeGPUs {
			t := p.s.NodeGPUs[i].Table
			switch {
			case seen[t]:
			case t == nil:
				rings = append(rings, unknownRing)
			default:
				rings = append(rings, t.Rings(k)...)
			}
			seen[t] = true
		}
	}
	slices.SortFunc(rings, func(a, b float64) int { return cmp.Compare(b, a) })
	rings = slices.Compact(rings)
	var out []aim
	for _, preferred := range []bool{true, false} {
		for _, ring := range rings {
			out = append(out, aim{preferred, ring})
		}
		if !prefers {
			break
		}
		out = append(out, aim{preferred, 0})
	}
	return out
}

// replay follows, node by node and in the order of the seats, which GPUs the pods of
// the plan at hand may get, and gives each pod's outcome to see.
func (p *Planner) replay(see func(seat int, g *NodeGPUs, o *topology.Outcome)) {
	sets := map[int]topology.Set{}
	for seat, node := range p.nodes {
		if node < 0 {
			continue
		}
		k := p.s.gpusOf(&p.s.Classes[p.r.Seats[seat].Class])
		if k == 0 {
			continue
		}
		g := &p.s.NodeGPUs[node]
		if g.Table == nil {
			see(seat, g, nil)
			continue
		}
		free, ok := sets[node]
		if !ok {
			free = p.base[node]
		}
		see(seat, g, g.Table.Predict(free, k, g.Rule))
		sets[node] = g.Table.After(free, k, g.Rule)
	}
}

// achieved is how well the plan at hand does.
func (p *Planner) achieved() aim {
	out := aim{preferred: true, ring: -1}
	p.replay(func(seat int, g *NodeGPUs, o *topology.Outcome) {
		c := &p.s.Classes[p.r.Seats[seat].Class]
		if p.s.gpusOf(c) < 2 {
			return
		}
		ring := float64(unknownRing)
		if o != nil {
			ring = o.Worst
		}
		if out.ring < 0 || ring < out.ring {
			out.ring = ring
		}
		out.preferred = out.preferred && meets(g, o, c.LinkPreferred)
	})
	return out
}

// keepsLinks tells whether the plan at hand gives every pod what it requires, and
// aims at. Plans of several kinds of pods may not, since these take each other's
// GPUs in an order that is not known before.
func (p *Planner) keepsLinks() bool {
	ok := true
	if !p.linked {
		return ok // measure has seen to it
	}
	p.replay(func(seat int, g *NodeGPUs, o *topology.Outcome) {
		c := &p.s.Classes[p.r.Seats[seat].Class]
		if p.s.gpusOf(c) < 2 {
			return
		}
		want := p.want(c)
		ring := float64(unknownRing)
		if o != nil {
			ring = o.Worst
		}
		ok = ok && ring >= want.Ring && meets(g, o, want.Requirement)
	})
	return ok
}

func meets(g *NodeGPUs, o *topology.Outcome, r topology.Requirement) bool {
	if r == (topology.Requirement{}) {
		return true
	}
	return o != nil && len(o.Sets) > 0 && !slices.ContainsFunc(o.Sets, func(s topology.Set) bool { return !g.Table.Meets(s, r) })
}

// Assignment is what GPUs a pod of a plan may get.
type Assignment struct {
	// Sets are all that the device plugin may pick, whichever of the gang's pods on
	// the node starts first; nil: nothing is known.
	Sets []topology.Set
	// Worst, Expected and Best are of their rings, in GB/s, Expected with each of
	// them equally likely. Possible is the best that so many GPUs have on an empty
	// node of the kind.
	Worst, Expected, Best, Possible float64
}

// manyStates bounds how many ways in which a node's GPUs may be handed out are
// followed; beyond, only those that leave the least are.
const manyStates = 256

// assignments gives the plan's, by seat.
func (p *Planner) assignments() []Assignment {
	if !p.linked {
		return nil
	}
	out := make([]Assignment, len(p.nodes))
	seats := map[int][]int{} // with GPUs, by node
	for seat, node := range p.nodes {
		if node >= 0 && p.s.NodeGPUs[node].Table != nil && p.gpusOfSeat(seat) > 0 {
			seats[node] = append(seats[node], seat)
		}
	}
	// Most nodes of a large gang are alike.
	alike := map[likeness]map[int]Assignment{}
	for node, list := range seats {
		g := &p.s.NodeGPUs[node]
		of := likeness{g.Table, p.base[node], g.Rule, p.gpusOfSeat(list[0]), len(list)}
		one := !slices.ContainsFunc(list, func(seat int) bool { return p.gpusOfSeat(seat) != of.k })
		byK := alike[of]
		if byK == nil || !one {
			byK = p.outcomes(g, p.base[node], list)
		}
		if one {
			alike[of] = byK
		}
		for _, seat := range list {
			out[seat] = byK[p.gpusOfSeat(seat)]
		}
	}
	return out
}

// likeness is what the outcomes of a node with n pods of k GPUs each depend on.
type likeness struct {
	table *topology.Table
	free  topology.Set
	rule  topology.Rule
	k, n  int
}

func (p *Planner) gpusOfSeat(seat int) int { return p.s.gpusOf(&p.s.Classes[p.r.Seats[seat].Class]) }

// outcomes gives what the node's device plugin may pick for the seats, by the number
// of GPUs.
func (p *Planner) outcomes(g *NodeGPUs, free topology.Set, seats []int) map[int]Assignment {
	states := map[topology.Set]bool{free: true}
	picked := map[int]map[topology.Set]bool{}
	for _, seat := range seats {
		k := p.gpusOfSeat(seat)
		if picked[k] == nil {
			picked[k] = map[topology.Set]bool{}
		}
		next := map[topology.Set]bool{}
		for state := range states {
			for _, s := range g.Table.Predict(state, k, g.Rule).Sets {
				picked[k][s] = true
				if len(states) <= manyStates {
					next[state&^s] = true
				}
			}
			next[g.Table.After(state, k, g.Rule)] = true
		}
		states = next
	}
	out := map[int]Assignment{}
	for k, sets := range picked {
		out[k] = assignment(g.Table, slices.Sorted(maps.Keys(sets)), k)
	}
	return out
}

func assignment(t *topology.Table, sets []topology.Set, k int) Assignment {
	if len(sets) == 0 {
		return Assignment{}
	}
	out := Assignment{Sets: sets, Worst: t.Ring(sets[0]), Possible: t.Ring(t.Best(t.All(), k))}
	for _, s := range sets {
		ring := t.Ring(s)
		out.Worst, out.Best = min(out.Worst, ring), max(out.Best, ring)
		out.Expected += ring / float64(len(sets))
	}
	return out
}
