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

// TestSearchWhereGreedyFails has a kind that takes the nodes of two others if it is
// placed first, and is placed first since it looks no different.
func TestSearchWhereGreedyFails(t *testing.T) {
	s := wide(15, 8, 10, 110)
	for _, nodes := range []func(n int) bool{
		func(n int) bool { return n < 10 },
		func(n int) bool { return n < 5 || n >= 10 },
		func(n int) bool { return n < 5 || n >= 10 },
	} {
		c := Class{Request: []int64{8, 1, 1}}
		for n := range s.Tree.Len() {
			c.Eligible = append(c.Eligible, nodes(n))
		}
		s.Classes = append(s.Classes, c)
	}
	r := &Request{Seats: slices.Concat(seatsOf(5, 0, "a"), seatsOf(5, 1, "b"), seatsOf(5, 2, "c"))}
	plan, why := Place(s, r)
	if plan == nil {
		t.Fatal(why)
	}
	host := map[int]int{}
	for i, n := range plan.Nodes {
		if host[n]++; host[n] > 1 || !s.Classes[i/5].Eligible[n] {
			t.Errorf("seat %d is on host %d with %d others", i, n, host[n]-1)
		}
	}
}

// TestSearchEnds: what cannot be decided within the steps is refused, and the
// answer is the same each time.
func TestSearchEnds(t *testing.T) {
	const hosts = 60
	s := wide(hosts, 16, 100, 110)
	// All are multiples of three, so that a host has room for fifteen of its sixteen
	// GPUs: of 960 there are 900 of use, and 930 are wanted.
	var seats []Seat
	for class, c := range []struct {
		gpus, cpu int64
		n         int
	}{{9, 1, 20}, {9, 2, 20}, {6, 1, 30}, {6, 2, 30}, {3, 1, 35}, {3, 2, 35}} {
		s.Classes = append(s.Classes, Class{Request: []int64{c.gpus, c.cpu, 1}})
		seats = append(seats, seatsOf(c.n, ClassID(class), fmt.Sprint("role", class))...)
	}
	var p Planner
	_, first := p.Place(s, &Request{Seats: seats})
	if first == nil || first.Code != CodeRoom {
		t.Fatalf("refusal: %v", first)
	}
	if p.steps != 0 {
		t.Errorf("%d steps are left: this gang was decided, and shows nothing", p.steps)
	}
	if _, again := p.Place(s, &Request{Seats: seats}); again.String() != first.String() {
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
