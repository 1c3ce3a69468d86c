package topology

import (
	"cmp"
	"slices"
)

// Table answers what sets of a node's GPUs are worth. What takes long is computed
// once and kept; one table serves every node with the same graph. It is not for
// concurrent use.
type Table struct {
	*Graph
	ring  []float32 // GB/s, by set
	tier  []float32 // a Tier, by set
	score []int32   // the device plugin's, by set

	outcomes map[choice]*Outcome
	worth    []packing
	chosen   map[choice]Set
	after    map[choice]Set
	fits     map[fit]int
	floors   []floor // by number of GPUs
}

// floor is what any set of a size has at least.
type floor struct{ ring, tier float32 }

// Want is what a pod wants of its GPUs: both hold, whatever the device plugin picks.
type Want struct {
	Ring float64 // GB/s at least
	Requirement
}

type fit struct {
	choice
	want Want
}

// choice is a number of GPUs out of those that are free.
type choice struct {
	free Set
	k    int
	rule Rule
}

// NewTable computes the table of a graph.
func NewTable(g *Graph) *Table {
	t := &Table{
		Graph: g, score: g.setScores(), outcomes: map[choice]*Outcome{}, chosen: map[choice]Set{},
		after: map[choice]Set{}, fits: map[fit]int{},
		ring: bottlenecks(g.n, func(i, j int) float32 { return float32(g.Link(i, j).GBps) }),
		tier: bottlenecks(g.n, func(i, j int) float32 { return float32(g.Link(i, j).Tier()) }),
	}
	for k := 2; k <= g.n; k *= 2 {
		t.worth = append(t.worth, packing{ring: t.ring, k: k, known: map[Set]float32{}})
	}
	return t
}

// Ring is the bandwidth of the best ring over the set, in GB/s and one direction;
// 0 for fewer than two GPUs.
//
// Over NVSwitches it is what each GPU can push; over direct links and PCIe, what
// the slowest link of the best cycle carries.
func (t *Table) Ring(s Set) float64 { return float64(t.ring[s]) }

// Meets tells whether the set is connected as required. One GPU always is.
func (t *Table) Meets(s Set, r Requirement) bool {
	if s.Len() < 2 {
		return true
	}
	return t.tier[s] >= float32(r.Tier) && (!r.OneNUMA || t.oneNUMA(s))
}

// Predict gives what the device plugin may pick when k of the free GPUs are asked
// for. The outcome is shared and must not be changed; it has no sets if there is no
// choice.
func (t *Table) Predict(free Set, k int, rule Rule) *Outcome {
	if k < 1 || k > free.Len() {
		return &none
	}
	this := choice{free, k, rule}
	out := t.outcomes[this]
	if out == nil {
		out = t.predict(this)
		t.outcomes[this] = out
	}
	return out
}

var none Outcome

func (t *Table) predict(c choice) *Outcome {
	out := &Outcome{}
	switch {
	case c.rule == AnySet:
		out.Sets = subsets(c.free, c.k)
	case c.rule == OneNUMANode && c.k > 1 && !slices.Contains(t.numa, -1):
		for _, node := range t.numaNodes() {
			if free := c.free & node; free.Len() >= c.k {
				out.Sets = append(out.Sets, bestEffort(t.score, free, c.k)...)
			}
		}
	default:
		out.Sets = bestEffort(t.score, c.free, c.k)
	}
	if len(out.Sets) == 0 {
		return out
	}
	out.Worst = t.Ring(out.Sets[0])
	for _, s := range out.Sets {
		ring := t.Ring(s)
		out.Worst, out.Best = min(out.Worst, ring), max(out.Best, ring)
		out.Expected += ring / float64(len(out.Sets))
	}
	return out
}

// Best gives the best k of the free GPUs: the highest ring; of these the ones that
// leave the most worth (see Worth), and of these the lowest set. It gives 0 if
// there are not so many.
func (t *Table) Best(free Set, k int) Set {
	if k < 1 || k > free.Len() {
		return 0
	}
	this := choice{free: free, k: k}
	best, ok := t.chosen[this]
	if !ok {
		each(free, k, func(s Set) {
			if best == 0 || cmp.Or(cmp.Compare(t.ring[s], t.ring[best]), cmp.Compare(t.worthOf(free&^s), t.worthOf(free&^best))) > 0 {
				best = s
			}
		})
		t.chosen[this] = best
	}
	return best
}

// Fit is how many pods of k GPUs each get what they want from the free GPUs, one
// after the other, whatever the device plugin picks for them.
//
// On nodes of up to 8 GPUs every way in which it may go is followed; on larger ones
// only the one that leaves the least worth at each step.
func (t *Table) Fit(free Set, k int, rule Rule, want Want) int {
	if k < 1 || k > free.Len() {
		return 0
	}
	if k == 1 || rule != OneNUMANode && t.always(k, want) {
		return free.Len() / k
	}
	this := fit{choice{free, k, rule}, want}
	if n, ok := t.fits[this]; ok {
		return n
	}
	n := t.follow(this)
	t.fits[this] = n
	return n
}

func (t *Table) follow(f fit) int {
	out := t.Predict(f.free, f.k, f.rule)
	if len(out.Sets) == 0 {
		return 0
	}
	for _, s := range out.Sets {
		if t.Ring(s) < f.want.Ring || !t.Meets(s, f.want.Requirement) {
			return 0
		}
	}
	if t.n > exactly {
		return 1 + t.Fit(t.After(f.free, f.k, f.rule), f.k, f.rule, f.want)
	}
	least := f.free.Len()
	for _, s := range out.Sets {
		least = min(least, t.Fit(f.free&^s, f.k, f.rule, f.want))
	}
	return 1 + least
}

// exactly is the most GPUs of a node of which Fit follows every way.
const exactly = 8

// always tells whether every set of k GPUs has what is wanted.
func (t *Table) always(k int, want Want) bool {
	if want.OneNUMA {
		return false
	}
	if t.floors == nil {
		t.floors = make([]floor, t.n+1)
		for size := 2; size <= t.n; size++ {
			all := floor{t.ring[t.All()], t.tier[t.All()]}
			each(t.All(), size, func(s Set) { all = floor{min(all.ring, t.ring[s]), min(all.tier, t.tier[s])} })
			t.floors[size] = all
		}
	}
	return float64(t.floors[k].ring) >= want.Ring && t.floors[k].tier >= float32(want.Tier)
}

// After is what is left of the free GPUs when the device plugin has picked k of
// them: of all that it may leave, what is worth least. A pod that is there against
// the rule counts by links. It gives 0 if there are not so many.
func (t *Table) After(free Set, k int, rule Rule) Set {
	if k < 1 {
		return free
	}
	this := choice{free, k, rule}
	left, ok := t.after[this]
	if !ok {
		sets := t.Predict(free, k, rule).Sets
		if len(sets) == 0 {
			sets = t.Predict(free, k, ByLinks).Sets
		}
		for i, s := range sets {
			if rest := free &^ s; i == 0 || t.worthOf(rest) < t.worthOf(left) {
				left = rest
			}
		}
		t.after[this] = left
	}
	return left
}

// Loss is how much Worth is lost, in the mean over what the device plugin may
// pick, when k of the free GPUs are taken.
func (t *Table) Loss(free Set, k int, rule Rule) float64 {
	sets := t.Predict(free, k, rule).Sets
	sum := float32(0)
	for _, s := range sets {
		sum += t.worthOf(free &^ s)
	}
	if len(sets) == 0 {
		return 0
	}
	return float64(t.worthOf(free) - sum/float32(len(sets)))
}

// Rings gives the distinct bandwidths of the rings of k GPUs, the highest first.
func (t *Table) Rings(k int) []float64 {
	var out []float64
	each(t.All(), k, func(s Set) {
		if ring := t.Ring(s); !slices.Contains(out, ring) {
			out = append(out, ring)
		}
	})
	slices.SortFunc(out, func(a, b float64) int { return cmp.Compare(b, a) })
	return out
}

// Worth is what free GPUs are good for, in GB/s: for pairs, quads and octets, the
// most that the rings of sets of that size, side by side, add up to. Taking a GPU
// of a whole pair costs more of it than taking one whose peer is in use.
func (t *Table) Worth(free Set) float64 { return float64(t.worthOf(free)) }

func (t *Table) worthOf(free Set) float32 {
	sum := float32(0)
	for i := range t.worth {
		sum += t.worth[i].best(free)
	}
	return sum
}

// packing finds the most that the rings of disjoint sets of k add up to.
type packing struct {
	ring  []float32
	k     int
	known map[Set]float32
}

func (p *packing) best(free Set) float32 {
	if free.Len() < p.k {
		return 0
	}
	if sum, ok := p.known[free]; ok {
		return sum
	}
	first := free.lowest()
	most := p.best(free &^ first)
	each(free&^first, p.k-1, func(s Set) {
		s |= first
		most = max(most, p.ring[s]+p.best(free&^s))
	})
	p.known[free] = most
	return most
}

// Catalog keeps one table for each distinct graph. The zero value is ready; it is
// not for concurrent use.
type Catalog struct{ tables map[string]*Table }

// Table gives the graph's table.
func (c *Catalog) Table(g *Graph) *Table {
	key := g.key()
	t := c.tables[key]
	if t == nil {
		t = NewTable(g)
		if c.tables == nil {
			c.tables = map[string]*Table{}
		}
		c.tables[key] = t
	}
	return t
}
