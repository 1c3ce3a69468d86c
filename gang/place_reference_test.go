package gang

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// world is a small random cluster with a gang for it.
type world struct {
	nodes   []topology.Node
	alloc   [][]int64 // by node, in the order of nodes
	free    [][]int64
	classes []Class // Eligible in the order of nodes
	request Request
	exclude []bool
}

var testLevels = []topology.Level{{Name: "block", Keys: []string{"b"}}, {Name: "rack", Keys: []string{"r"}}}

func drawWorld(t *rapid.T) *world {
	w := &world{}
	n := rapid.IntRange(1, 6).Draw(t, "nodes")
	for i := range n {
		labels := map[string]string{}
		if b := rapid.IntRange(0, 2).Draw(t, "block"); b > 0 {
			labels["b"] = fmt.Sprint(b)
		}
		if r := rapid.IntRange(0, 3).Draw(t, "rack"); r > 0 {
			labels["r"] = fmt.Sprint(r)
		}
		w.nodes = append(w.nodes, topology.Node{Name: fmt.Sprintf("n%d", i), Labels: labels})
		alloc := []int64{rapid.Int64Range(0, 4).Draw(t, "gpu"), rapid.Int64Range(1, 6).Draw(t, "cpu"), 8}
		free := slices.Clone(alloc)
		for r := range 2 {
			free[r] -= rapid.Int64Range(0, alloc[r]+1).Draw(t, "used")
		}
		w.alloc, w.free = append(w.alloc, alloc), append(w.free, free)
	}
	for range rapid.IntRange(1, 3).Draw(t, "classes") {
		c := Class{Request: []int64{rapid.Int64Range(0, 3).Draw(t, "wantGPU"), rapid.Int64Range(0, 3).Draw(t, "wantCPU"), 1}}
		c.MaxPerNode = rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "perNode")
		for range n {
			c.Eligible = append(c.Eligible, rapid.IntRange(0, 5).Draw(t, "eligible") > 0)
		}
		w.classes = append(w.classes, c)
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "seats") {
		w.request.Seats = append(w.request.Seats, Seat{
			UID: fmt.Sprint(i), Name: fmt.Sprintf("p%d", i), Rank: i,
			Class: ClassID(rapid.IntRange(0, len(w.classes)-1).Draw(t, "class")),
		})
	}
	levels := []string{"", "", "", "cluster", "block", "rack", "host"}
	w.request.Required = rapid.SampledFrom(levels).Draw(t, "required")
	w.request.Preferred = rapid.SampledFrom(levels).Draw(t, "preferred")
	for range n {
		w.exclude = append(w.exclude, rapid.IntRange(0, 9).Draw(t, "excluded") == 0)
	}
	return w
}

// build makes the planner's input of the world, with its nodes shuffled.
func (w *world) build(order []int) (*Snapshot, *Request) {
	nodes := make([]topology.Node, 0, len(order))
	for _, i := range order {
		nodes = append(nodes, w.nodes[i])
	}
	s := &Snapshot{Tree: topology.Build(testLevels, nodes), Resources: []string{"nvidia.com/gpu", "cpu", "pods"}, GPU: 0}
	at := map[string]int{}
	for i, n := range w.nodes {
		at[n.Name] = i
	}
	r := w.request
	r.Excluded = make([]bool, len(w.nodes))
	for i := range s.Tree.Len() {
		from := at[s.Tree.Name(i)]
		s.Allocatable = append(s.Allocatable, w.alloc[from]...)
		s.Free = append(s.Free, w.free[from]...)
		r.Excluded[i] = w.exclude[from]
	}
	for _, c := range w.classes {
		eligible := make([]bool, len(w.nodes))
		for i := range eligible {
			eligible[i] = c.Eligible[at[s.Tree.Name(i)]]
		}
		c.Eligible = eligible
		s.Classes = append(s.Classes, c)
	}
	return s, &r
}

func identity(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// feasible tries every node for every seat.
func feasible(s *Snapshot, r *Request, allowed func(node int) bool) bool {
	s = s.Clone()
	perNode := map[[2]int]int{}
	var place func(seat int) bool
	place = func(seat int) bool {
		if seat == len(r.Seats) {
			return true
		}
		id := r.Seats[seat].Class
		class := &s.Classes[id]
		for n := range s.Tree.Len() {
			if !allowed(n) || !class.Eligible[n] || r.Excluded[n] || !fits(s.Row(n), class.Request) {
				continue
			}
			if key := [2]int{int(id), n}; class.MaxPerNode == 0 || perNode[key] < class.MaxPerNode {
				s.Assume(n, id)
				perNode[key]++
				ok := place(seat + 1)
				perNode[key]--
				s.Unassume(n, id)
				if ok {
					return true
				}
			}
		}
		return false
	}
	return place(0)
}

func fits(free, want []int64) bool {
	for r, n := range want {
		if n > 0 && free[r] < n {
			return false
		}
	}
	return true
}

// reference finds the narrowest level that holds the gang, and the fewest of its
// children that do, by trying all of them. Depth is -1 if there is none.
func reference(s *Snapshot, r *Request) (depth, children int) {
	t := s.Tree
	widest, narrowest := 0, 0
	if r.Required != "" {
		widest, _ = t.Depth(r.Required)
	}
	for _, seat := range r.Seats {
		if s.Classes[seat.Class].Request[0] > 0 {
			narrowest = t.Depths() - 1
		}
	}
	if r.Preferred != "" {
		narrowest, _ = t.Depth(r.Preferred)
	}
	for depth := max(narrowest, widest); depth >= widest; depth-- {
		best := 0
		for domain := range t.Domains(depth) {
			if n := fewestChildren(s, r, depth, domain); n > 0 && (best == 0 || n < best) {
				best = n
			}
		}
		if best > 0 {
			return depth, best
		}
	}
	return -1, 0
}

func fewestChildren(s *Snapshot, r *Request, depth, domain int) int {
	t := s.Tree
	if depth == t.Depths()-1 {
		if feasible(s, r, func(n int) bool { return t.Domain(depth, n) == domain }) {
			return 1
		}
		return 0
	}
	first, end := t.Children(depth, domain)
	best := 0
	for set := 1; set < 1<<(end-first); set++ {
		size := 0
		for c := range end - first {
			size += set >> c & 1
		}
		if best > 0 && size >= best {
			continue
		}
		if feasible(s, r, func(n int) bool {
			return t.Domain(depth, n) == domain && set>>(t.Domain(depth+1, n)-first)&1 == 1
		}) {
			best = size
		}
	}
	return best
}

// TestPlaceAgainstReference holds the planner to what trying everything finds:
// whether the gang fits, on which level, and over how few domains.
func TestPlaceAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		s, r := w.build(identity(len(w.nodes)))
		depth, children := reference(s, r)
		p := new(Planner)
		plan, why := p.Place(s, r)
		if (plan == nil) != (depth < 0) {
			t.Fatalf("planned: %v (%v), the reference finds level %d", plan, why, depth)
		}
		if plan == nil {
			if why == nil || why.Code == "" || why.String() == "" {
				t.Fatalf("refused without a reason")
			}
			return
		}
		check(t, s, r, plan)
		closeness := r.Preferred != "cluster" || r.Required != ""
		if closeness {
			if got := spans(s, plan); got < depth {
				t.Fatalf("plan %v spans level %d, the reference finds one within level %d", plan.Nodes, got, depth)
			}
		}
		if got := used(s, plan, depth); p.caring() && got != children {
			t.Fatalf("plan %v uses %d children of its domain, the reference %d", plan.Nodes, got, children)
		}
	})
}

// spans is the depth of the narrowest domain that holds the plan.
func spans(s *Snapshot, plan *Plan) int {
	for depth := s.Tree.Depths() - 1; ; depth-- {
		same := true
		for _, n := range plan.Nodes {
			same = same && s.Tree.Domain(depth, n) == s.Tree.Domain(depth, plan.Nodes[0])
		}
		if same {
			return depth
		}
	}
}

func used(s *Snapshot, plan *Plan, depth int) int {
	if depth == s.Tree.Depths()-1 {
		return 1
	}
	children := map[int]bool{}
	for _, n := range plan.Nodes {
		children[s.Tree.Domain(depth+1, n)] = true
	}
	return len(children)
}

// check holds a plan to everything that is required of it.
func check(t *rapid.T, s *Snapshot, r *Request, plan *Plan) {
	after := s.Clone()
	perNode := map[[2]int]int{}
	for i, n := range plan.Nodes {
		if n < 0 {
			if !r.Seats[i].Optional {
				t.Fatalf("seat %d has no node in %v", i, plan.Nodes)
			}
			continue
		}
		id := r.Seats[i].Class
		class := &s.Classes[id]
		if !class.Eligible[n] || r.Excluded[n] {
			t.Fatalf("seat %d is on node %d, which it may not use", i, n)
		}
		key := [2]int{int(id), n}
		if perNode[key]++; class.MaxPerNode > 0 && perNode[key] > class.MaxPerNode {
			t.Fatalf("%d pods of class %d on node %d", perNode[key], id, n)
		}
		if !fits(after.Row(n), class.Request) {
			t.Fatalf("node %d is overcommitted by %v", n, plan.Nodes)
		}
		after.Assume(n, id)
	}
	if depth, ok := s.Tree.Depth(r.Required); ok {
		homes := map[int]bool{}
		for _, n := range append(slices.Clone(plan.Nodes), r.Fixed...) {
			if n >= 0 {
				homes[s.Tree.Domain(depth, n)] = true
			}
		}
		if len(homes) > 1 {
			t.Fatalf("plan %v is in %d domains of the required level %s", plan.Nodes, len(homes), r.Required)
		}
	}
}

// TestPlaceWithOptionalAndFixed checks plans with surplus members and with members
// that run already, for which the reference is too dumb.
func TestPlaceWithOptionalAndFixed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		s, r := w.build(identity(len(w.nodes)))
		for range rapid.IntRange(0, 2).Draw(t, "fixed") {
			r.Fixed = append(r.Fixed, rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node"))
		}
		for i := range r.Seats {
			r.Seats[i].Optional = rapid.Bool().Draw(t, "optional")
		}
		before := slices.Clone(s.Free)
		plan, why := Place(s, r)
		if !slices.Equal(before, s.Free) {
			t.Fatal("the snapshot was changed")
		}
		if plan == nil {
			if why == nil {
				t.Fatal("refused without a reason")
			}
			return
		}
		check(t, s, r, plan)
		// An optional seat is only left out where it does not fit any more.
		if r.Required == "" {
			s.Assume(0, 0)
			s.Unassume(0, 0)
			after, perNode := s.Clone(), map[[2]int]int{}
			for i, n := range plan.Nodes {
				if n >= 0 {
					after.Assume(n, r.Seats[i].Class)
					perNode[[2]int{int(r.Seats[i].Class), n}]++
				}
			}
			for i, n := range plan.Nodes {
				for m := 0; n < 0 && m < s.Tree.Len(); m++ {
					id := r.Seats[i].Class
					c := &s.Classes[id]
					if c.Eligible[m] && !r.Excluded[m] && fits(after.Row(m), c.Request) && (c.MaxPerNode == 0 || perNode[[2]int{int(id), m}] < c.MaxPerNode) {
						t.Fatalf("seat %d was left out of %v, and node %d has room for it", i, plan.Nodes, m)
					}
				}
			}
		}
	})
}

// TestPlaceIsDeterministic shuffles the nodes and the seats of a world.
func TestPlaceIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		answer := func(order, seats []int) string {
			s, r := w.build(order)
			shuffled := *r
			shuffled.Seats = nil
			for _, i := range seats {
				shuffled.Seats = append(shuffled.Seats, r.Seats[i])
			}
			plan, why := Place(s, &shuffled)
			if plan == nil {
				return why.String()
			}
			out := make([]string, len(seats))
			for at, i := range seats {
				out[i] = s.Tree.Name(plan.Nodes[at])
			}
			return fmt.Sprint(plan.Level, plan.Domain, out)
		}
		nodes, seats := identity(len(w.nodes)), identity(len(w.request.Seats))
		want := answer(nodes, seats)
		got := answer(rapid.Permutation(nodes).Draw(t, "order"), rapid.Permutation(seats).Draw(t, "seats"))
		if got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}
