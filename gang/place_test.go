package gang

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// TestPlannerCanBeReused: buffers carry nothing from one call to the next, whatever
// the sizes.
func TestPlannerCanBeReused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Planner
		for range rapid.IntRange(2, 4).Draw(t, "calls") {
			w := drawWorld(t)
			s, r := w.build(identity(len(w.nodes)))
			if rapid.Bool().Draw(t, "running") {
				r.Fixed = []int{rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node")}
			}
			got, whyNot := p.Place(s, r)
			want, why := Place(s, r)
			if diff := cmp.Diff(want, got) + cmp.Diff(why, whyNot); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// TestPlaceBesideRunningMembers: with members that run already, a plan is found if
// and only if one domain of the required level holds them and has the room.
func TestPlaceBesideRunningMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		s, r := w.build(identity(len(w.nodes)))
		for range rapid.IntRange(1, 2).Draw(t, "running") {
			r.Fixed = append(r.Fixed, rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node"))
		}
		depth := 0
		if r.Required != "" {
			depth, _ = s.Tree.Depth(r.Required)
		}
		home := s.Tree.Domain(depth, r.Fixed[0])
		want := feasible(s, r, func(n int) bool { return s.Tree.Domain(depth, n) == home })
		for _, n := range r.Fixed {
			want = want && s.Tree.Domain(depth, n) == home
		}
		plan, why := Place(s, r)
		if (plan != nil) != want {
			t.Fatalf("planned: %v (%v), want %v", plan, why, want)
		}
		if plan != nil {
			check(t, s, r, plan)
		}
	})
}

// wide is a rack of more hosts than all combinations can be tried of.
func wide(n int, node ...int64) *Snapshot {
	list := make([]topology.Node, 0, n)
	for i := range n {
		list = append(list, topology.Node{Name: fmt.Sprintf("n%d", i), Labels: map[string]string{"r": "r1"}})
	}
	s := &Snapshot{Tree: topology.Build(testLevels, list), Resources: []string{"nvidia.com/gpu", "cpu", "pods"}, GPU: 0}
	for range n {
		s.Allocatable = append(s.Allocatable, node...)
	}
	s.Free = slices.Clone(s.Allocatable)
	return s
}

// TestSearchWhereGreedyFails has a pair of kinds that fill each host only together:
// placing all of either kind first packs two of it on one host.
func TestSearchWhereGreedyFails(t *testing.T) {
	const hosts = 16
	s := wide(hosts, 8, 10, 110)
	s.Classes = []Class{{Request: []int64{4, 1, 1}}, {Request: []int64{3, 9, 1}}}
	r := &Request{Seats: slices.Concat(seatsOf(hosts, 0, "a"), seatsOf(hosts, 1, "b"))}
	plan, why := Place(s, r)
	if plan == nil {
		t.Fatal(why)
	}
	perHost := make([][2]int, hosts)
	for i, n := range plan.Nodes {
		perHost[n][i/hosts]++
	}
	for n, got := range perHost {
		if got != [2]int{1, 1} {
			t.Errorf("host %d has %v", n, got)
		}
	}
}

// TestSearchEnds: what cannot be decided within the steps is refused, and the
// answer is the same each time.
func TestSearchEnds(t *testing.T) {
	const hosts = 64
	s := wide(hosts, 8, 100, 110)
	// Sevens and threes and twos that leave one GPU of each host over, and want all.
	s.Classes = []Class{{Request: []int64{7, 1, 1}}, {Request: []int64{5, 1, 1}}, {Request: []int64{2, 1, 1}}}
	r := &Request{Seats: slices.Concat(seatsOf(20, 0, "a"), seatsOf(44, 1, "b"), seatsOf(76, 2, "c"))}
	_, first := Place(s, r)
	if first == nil || first.Code != CodeRoom {
		t.Fatalf("refusal: %v", first)
	}
	if _, again := Place(s, r); again.String() != first.String() {
		t.Errorf("%q, then %q", first, again)
	}
}

// TestGreedyTakesTheScarceKindFirst: on a cluster too large for search, a kind with
// few nodes of its own is not crowded out by one that may go anywhere.
func TestGreedyTakesTheScarceKindFirst(t *testing.T) {
	const hosts = 2_000
	s := wide(hosts, 8, 100, 110)
	few := make([]bool, hosts)
	for i := range 100 {
		few[i] = true
	}
	s.Classes = []Class{{Request: []int64{8, 1, 1}}, {Request: []int64{4, 1, 1}, Eligible: few}}
	r := &Request{Seats: slices.Concat(seatsOf(hosts-100, 0, "a"), seatsOf(200, 1, "b"))}
	if plan, why := Place(s, r); plan == nil {
		t.Fatal(why)
	}
}

// TestRefusalsAreShort: a reason speaks of counts, not of each node.
func TestRefusalsAreShort(t *testing.T) {
	s := benchSnapshot(15_000, true)
	for i := range s.Classes {
		for reason := range 20 {
			s.Classes[i].Ineligible = append(s.Classes[i].Ineligible, Count{strings.Repeat(fmt.Sprint("reason ", reason, " "), 10), 100})
		}
	}
	excluded := make([]bool, s.Tree.Len())
	for i := range excluded {
		excluded[i] = i%2 == 0
	}
	for _, required := range []string{"", "rack", "host"} {
		for _, seats := range [][]Seat{
			seatsOf(64, wholeNode, "worker"), seatsOf(20_000, wholeNode, "worker"), seatsOf(2, twoNodesGPUs, "worker"),
			slices.Concat(seatsOf(8, wholeNode, strings.Repeat("r", 63)), seatsOf(128, oneGPU, "worker")),
		} {
			plan, why := Place(s, &Request{Seats: seats, Required: required, Excluded: excluded})
			switch {
			case plan == nil && (len(why.String()) > 1024 || why.Code == ""):
				t.Errorf("%s, %d bytes: %s", why.Code, len(why.String()), why)
			case plan != nil && required != "":
				t.Errorf("%d seats were placed in one %s", len(seats), required)
			}
		}
	}
}

// TestSnapshotArithmetic: what is assumed and unassumed leaves no trace, and a
// clone's room is its own.
func TestSnapshotArithmetic(t *testing.T) {
	s := wide(2, 8, 10, 110)
	s.Classes = []Class{{Request: []int64{2, 3, 1}}}
	before := slices.Clone(s.Free)
	clone := s.Clone()
	clone.Assume(1, 0)
	clone.AssumeRequest(1, []int64{1, 0, 0})
	if diff := cmp.Diff([]int64{5, 7, 109}, clone.Row(1)); diff != "" || !slices.Equal(before, s.Free) {
		t.Errorf("the clone: %s; the original: %v", diff, s.Free)
	}
	clone.Unassume(1, 0)
	clone.UnassumeRequest(1, []int64{1, 0, 0})
	if diff := cmp.Diff(before, clone.Free); diff != "" {
		t.Error(diff)
	}
}
