package gang

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// TestSlicesAgainstReference: gangs that come in slices are placed exactly if the
// domains of the slice level have room for so many whole slices, at the narrowest level
// that has, and each slice is in one domain.
func TestSlicesAgainstReference(t *testing.T) {
	for seed := range uint64(30_000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var nodes []topology.Node
		gpus := map[string][2]int64{} // of each node: all, free
		for rack := range 1 + rng.IntN(4) {
			for i := range 1 + rng.IntN(5) {
				name := fmt.Sprintf("r%d-n%d", rack, i)
				nodes = append(nodes, topology.Node{Name: name, Labels: map[string]string{"rack": fmt.Sprint(rack), "block": fmt.Sprint(rack / 2)}})
				all := int64(1 + rng.IntN(4))
				gpus[name] = [2]int64{all, int64(rng.IntN(int(all) + 1))}
			}
		}
		s := &Snapshot{
			Tree:      topology.Build([]topology.Level{{Name: "block", Keys: []string{"block"}}, {Name: "rack", Keys: []string{"rack"}}}, nodes),
			Resources: []string{"gpus"}, Classes: []Class{{Request: []int64{1}}},
		}
		for n := range s.Tree.Len() {
			of := gpus[s.Tree.Name(n)]
			s.Allocatable, s.Free = append(s.Allocatable, of[0]), append(s.Free, of[1])
		}
		r := &Request{Slice: 2 + rng.IntN(4)}
		for i := range r.Slice * (1 + rng.IntN(3)) {
			r.Seats = append(r.Seats, Seat{UID: fmt.Sprint(i), Name: fmt.Sprint(i), Rank: i})
		}
		plan, why := Place(s, r)
		checkSlices(t, seed, s, r, plan, why)
	}
}

func checkSlices(t *testing.T, seed uint64, s *Snapshot, r *Request, plan *Plan, why *Unschedulable) {
	t.Helper()
	tree := s.Tree
	room := func(list []int64, depth, domain int) (sum int) {
		from, to := tree.Interval(depth, domain)
		for n := from; n < to; n++ {
			sum += int(list[n])
		}
		return sum
	}
	level := -1
	for depth := range tree.Depths() {
		for domain := range tree.Domains(depth) {
			if room(s.Allocatable, depth, domain) >= r.Slice {
				level = depth
			}
		}
	}
	want := -1 // the narrowest depth with room for all slices
	for depth := 0; depth <= level; depth++ {
		slices := make([]int, tree.Domains(depth))
		for domain := range tree.Domains(level) {
			first, _ := tree.Interval(level, domain)
			slices[tree.Domain(depth, first)] += room(s.Free, level, domain) / r.Slice
		}
		for _, n := range slices {
			if n >= len(r.Seats)/r.Slice {
				want = depth
			}
		}
	}
	switch {
	case (plan != nil) != (want >= 0):
		t.Fatalf("seed %d: got %v, %v; the narrowest level with room is %d", seed, plan, why, want)
	case plan == nil:
		return
	}
	if depth, _ := tree.Depth(plan.Level); depth < want {
		t.Fatalf("seed %d: at level %s, though %s has room", seed, plan.Level, tree.LevelName(want))
	}
	for i, node := range plan.Nodes {
		if first := plan.Nodes[i-i%r.Slice]; tree.Domain(level, node) != tree.Domain(level, first) {
			t.Fatalf("seed %d: slice %d is in two of level %s: %v", seed, i/r.Slice, tree.LevelName(level), plan.Nodes)
		}
	}
}
