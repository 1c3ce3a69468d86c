package gang

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// tables are those of the captured machines with up to four GPUs, and the DGX-1.
func tables(t testing.TB) []*topology.Table {
	t.Helper()
	var out []*topology.Table
	paths, err := filepath.Glob("../topology/testdata/matrices/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no matrices", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m, err := topology.ParseMatrix(string(text))
		if err != nil {
			t.Fatal(err)
		}
		g, err := m.Graph("")
		if err != nil {
			t.Fatal(err)
		}
		if g.Len() <= 4 || filepath.Base(path) == "dgx1-v100-8x-hybrid-cube-mesh.txt" {
			out = append(out, topology.NewTable(g))
		}
	}
	return out
}

// linkedWorld is a small cluster of such machines with one class of pods.
func linkedWorld(rng *rand.Rand, all []*topology.Table) (*Snapshot, *Request) {
	n := 1 + rng.IntN(5)
	var nodes []topology.Node
	for i := range n {
		nodes = append(nodes, topology.Node{Name: fmt.Sprintf("n%d", i), Labels: map[string]string{"rack": fmt.Sprint(i / 3)}})
	}
	s := &Snapshot{
		Tree:      topology.Build([]topology.Level{{Name: "rack", Keys: []string{"rack"}}}, nodes),
		Resources: []string{"gpus", "pods"}, NodeGPUs: make([]NodeGPUs, n),
	}
	for i := range n {
		g := &s.NodeGPUs[i]
		free := 4
		if rng.IntN(5) > 0 {
			g.Table = all[rng.IntN(len(all))]
			g.Free = topology.Set(rng.Uint32()) & g.Table.All()
			g.Rule = topology.Rule(max(0, rng.IntN(8)-5))
			free = g.Free.Len()
		}
		s.Allocatable = append(s.Allocatable, 8, 110)
		s.Free = append(s.Free, int64(free), 110)
		if free > 1 && rng.IntN(3) == 0 {
			s.AssumeRequest(i, []int64{int64(1 + rng.IntN(free)), 1})
		}
	}
	k := 1 + rng.IntN(4)
	c := Class{Request: []int64{int64(k), 1}}
	requirements := []topology.Requirement{{}, {}, {Tier: topology.TierPCIe}, {Tier: topology.TierNVLink}, {Tier: topology.TierNVSwitch}, {OneNUMA: true}}
	c.LinkRequired, c.LinkPreferred = requirements[rng.IntN(len(requirements))], requirements[rng.IntN(len(requirements))]
	s.Classes = []Class{c}
	r := &Request{}
	for i := range 1 + rng.IntN(4) {
		r.Seats = append(r.Seats, Seat{UID: fmt.Sprint(i), Name: fmt.Sprint(i), Rank: i})
	}
	return s, r
}

// refFits tells, by what the device plugin may do at each step, whether n pods of the
// class get what they want on the node.
func refFits(s *Snapshot, node, n int, want topology.Want) bool {
	k := int(s.Classes[0].Request[0])
	if int64(n*k) > s.Row(node)[0] {
		return false
	}
	g := &s.NodeGPUs[node]
	if g.Table == nil {
		return k == 1 || want.Requirement == (topology.Requirement{}) && want.Ring <= unknownRing
	}
	var follow func(free topology.Set, n int) bool
	follow = func(free topology.Set, n int) bool {
		if n == 0 {
			return true
		}
		sets := g.Table.Predict(free, k, g.Rule).Sets
		return len(sets) > 0 && !slices.ContainsFunc(sets, func(set topology.Set) bool {
			return k > 1 && g.Table.Ring(set) < want.Ring || !g.Table.Meets(set, want.Requirement) || !follow(free&^set, n-1)
		})
	}
	// What came after the report has taken what is worst for the rest.
	free := g.Free
	for _, taken := range g.Taken {
		sets := g.Table.Predict(free, taken, g.Rule).Sets
		if len(sets) == 0 {
			sets = g.Table.Predict(free, taken, topology.ByLinks).Sets
		}
		least := free
		for i, set := range sets {
			if rest := free &^ set; i == 0 || g.Table.Worth(rest) < g.Table.Worth(least) {
				least = rest
			}
		}
		free = least
	}
	return follow(free, n)
}

// grade is how good an assignment is: bigger is better, level first.
type grade struct {
	depth, children int
	preferred       bool
	ring            float64
}

func (a grade) compare(b grade) int {
	switch {
	case a.depth != b.depth:
		return a.depth - b.depth
	case a.children != b.children:
		return b.children - a.children
	case a.preferred != b.preferred:
		return last(a.preferred, b.preferred)
	case a.ring > b.ring:
		return 1
	case a.ring < b.ring:
		return -1
	}
	return 0
}

// gradeOf grades an assignment by how many pods each node has; ok is false if it
// does not keep what is required.
func gradeOf(s *Snapshot, counts []int) (grade, bool) {
	c := &s.Classes[0]
	low, high, out := -1, -1, grade{preferred: true}
	rings := []float64{0}
	for node, n := range counts {
		if n == 0 {
			continue
		}
		if !refFits(s, node, n, topology.Want{Requirement: c.LinkRequired}) {
			return grade{}, false
		}
		both := topology.Want{Requirement: c.LinkRequired}
		both.Tier, both.OneNUMA = max(both.Tier, c.LinkPreferred.Tier), both.OneNUMA || c.LinkPreferred.OneNUMA
		out.preferred = out.preferred && refFits(s, node, n, both)
		if low < 0 {
			low = node
		}
		high = node
		if t := s.NodeGPUs[node].Table; t != nil && c.Request[0] > 1 {
			rings = append(rings, t.Rings(int(c.Request[0]))...)
		}
		rings = append(rings, unknownRing)
	}
	slices.Sort(rings)
	for _, ring := range rings {
		kept := true
		for node, n := range counts {
			kept = kept && (n == 0 || refFits(s, node, n, topology.Want{Ring: ring, Requirement: c.LinkRequired}))
		}
		if kept && c.Request[0] > 1 {
			out.ring = ring
		}
	}
	t := s.Tree
	out.depth = t.Depths() - 1
	for t.Domain(out.depth, low) != t.Domain(out.depth, high) {
		out.depth--
	}
	seen := map[int]bool{}
	for node, n := range counts {
		if n > 0 && out.depth < t.Depths()-1 {
			seen[t.Domain(out.depth+1, node)] = true
		}
	}
	out.children = len(seen)
	return out, true
}

// TestPlaceByLinksAgainstReference: Place finds a place where there is one that keeps
// what is required, and none is better by level, number of parts, preferred kind and
// ring, in this order.
func TestPlaceByLinksAgainstReference(t *testing.T) {
	all := tables(t)
	rounds := 50_000
	if testing.Short() {
		rounds = 3000
	}
	for seed := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s, r := linkedWorld(rng, all)
		plan, why := Place(s, r)
		var best grade
		found := false
		counts := make([]int, s.Tree.Len())
		var assign func(node, left int)
		assign = func(node, left int) {
			if node == len(counts)-1 {
				counts[node] = left
				if g, ok := gradeOf(s, counts); ok && (!found || g.compare(best) > 0) {
					best, found = g, true
				}
				return
			}
			for n := range left + 1 {
				counts[node] = n
				assign(node+1, left-n)
			}
		}
		assign(0, len(r.Seats))
		if (plan != nil) != found {
			t.Fatalf("seed %d: got %v, %v; there is a place: %t", seed, plan, why, found)
		}
		if plan == nil {
			continue
		}
		got := make([]int, s.Tree.Len())
		for _, n := range plan.Nodes {
			got[n]++
		}
		if g, ok := gradeOf(s, got); !ok || g.compare(best) != 0 {
			t.Fatalf("seed %d: %v is graded %+v (%t), the best is %+v", seed, got, g, ok, best)
		}
		for seat, a := range plan.GPUs {
			if s.NodeGPUs[plan.Nodes[seat]].Table != nil && (len(a.Sets) == 0 || a.Worst > a.Expected+1e-9 || a.Expected > a.Best+1e-9 || a.Best > a.Possible+1e-9) {
				t.Fatalf("seed %d: seat %d may get %+v", seed, seat, a)
			}
		}
	}
}

// TestTakenGPUsAreGivenBack: what is assumed and given back leaves no trace, in a clone
// and in what it was cloned from.
func TestTakenGPUsAreGivenBack(t *testing.T) {
	all := tables(t)
	g := NodeGPUs{Table: all[0], Free: all[0].All()}
	s := &Snapshot{
		Tree:      topology.Build(nil, []topology.Node{{Name: "n"}}),
		Resources: []string{"gpus"}, Allocatable: []int64{4}, Free: []int64{4},
		Classes: []Class{{Request: []int64{1}}, {Request: []int64{2}}}, NodeGPUs: []NodeGPUs{g},
	}
	s.Assume(0, 0)
	clone := s.Clone()
	clone.Assume(0, 1)
	s.Assume(0, 0)
	if got := clone.NodeGPUs[0].Taken; !slices.Equal(got, []int{1, 2}) {
		t.Errorf("the clone has %v", got)
	}
	s.Unassume(0, 0)
	if got := s.NodeGPUs[0].Taken; !slices.Equal(got, []int{1}) {
		t.Errorf("left: %v", got)
	}
	clone.Unassume(0, 0)
	if got := clone.NodeGPUs[0].Taken; !slices.Equal(got, []int{2}) {
		t.Errorf("left in the clone: %v", got)
	}
	if got := s.NodeGPUs[0].Taken; !slices.Equal(got, []int{1}) {
		t.Errorf("the clone has changed it: %v", got)
	}
}

// TestCase_D2_OrderOfArrivalDoesNotCostPairs: four pods of one GPU and two of two come
// in each of the 720 orders to two nodes of four linked pairs. Whatever the device
// plugin picks, both pods of two get linked pairs.
func TestCase_D2_OrderOfArrivalDoesNotCostPairs(t *testing.T) {
	text, err := os.ReadFile("../topology/testdata/matrices/pcie-8x-nv12-pairs.txt")
	if err != nil {
		t.Fatal(err)
	}
	m, err := topology.ParseMatrix(string(text))
	if err != nil {
		t.Fatal(err)
	}
	g, err := m.Graph("")
	if err != nil {
		t.Fatal(err)
	}
	table := topology.NewTable(g)
	planner := &Planner{}
	orders := 0
	arrive := func(order []ClassID, rng *rand.Rand) {
		s := &Snapshot{
			Tree:      topology.Build(nil, []topology.Node{{Name: "n1"}, {Name: "n2"}}),
			Resources: []string{"gpus"}, Allocatable: []int64{8, 8}, Free: []int64{8, 8},
			Classes:  []Class{{Request: []int64{1}}, {Request: []int64{2}}},
			NodeGPUs: []NodeGPUs{{Table: table, Free: table.All()}, {Table: table, Free: table.All()}},
		}
		for i, class := range order {
			plan, why := planner.Place(s, &Request{Seats: []Seat{{UID: "p", Class: class}}})
			if plan == nil {
				t.Fatalf("order %v, pod %d: %v", order, i, why)
			}
			sets := plan.GPUs[0].Sets
			for _, set := range sets {
				if class == 1 && !table.Meets(set, topology.Requirement{Tier: topology.TierNVLink}) {
					t.Fatalf("order %v, pod %d may get %v, which are not linked", order, i, set.GPUs())
				}
			}
			// The next report knows what was picked.
			node := plan.Nodes[0]
			s.NodeGPUs[node].Free &^= sets[rng.IntN(len(sets))]
			s.Free[node] -= int64(class) + 1
		}
		orders++
	}
	var permute func(order []ClassID, left []ClassID)
	permute = func(order, left []ClassID) {
		if len(left) == 0 {
			arrive(order, rand.New(rand.NewPCG(uint64(orders), 2)))
		}
		for i, class := range left {
			permute(append(slices.Clone(order), class), slices.Delete(slices.Clone(left), i, i+1))
		}
	}
	permute(nil, []ClassID{0, 0, 0, 0, 1, 1})
	if orders != 720 {
		t.Errorf("%d orders", orders)
	}
}

// TestAssignmentsCoverEveryOrder: whichever of a gang's pods on a node starts first,
// each gets one of the sets that were foreseen for it.
func TestAssignmentsCoverEveryOrder(t *testing.T) {
	all := tables(t)
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 9))
		s, r := linkedWorld(rng, all)
		plan, _ := Place(s, r)
		if plan == nil || plan.GPUs == nil {
			continue
		}
		left := map[int]topology.Set{}
		for _, seat := range rng.Perm(len(r.Seats)) {
			node := plan.Nodes[seat]
			g := &s.NodeGPUs[node]
			if g.Table == nil {
				continue
			}
			free, ok := left[node]
			if !ok {
				free = g.left()
			}
			sets := g.Table.Predict(free, int(s.Classes[0].Request[0]), g.Rule).Sets
			picked := sets[rng.IntN(len(sets))]
			if a := plan.GPUs[seat]; !slices.Contains(a.Sets, picked) || g.Table.Ring(picked) < a.Worst || g.Table.Ring(picked) > a.Best {
				t.Fatalf("seed %d: seat %d gets %v; foreseen was %+v", seed, seat, picked.GPUs(), a)
			}
			left[node] = free &^ picked
		}
	}
}
