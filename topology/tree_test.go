package topology

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var zoneRack = []Level{{"zone", []string{"z"}}, {"block", []string{"b", "b-old"}}, {"rack", []string{"r"}}}

// drawNodes gives nodes whose labels, names and levels may well meet each other.
func drawNodes(t *rapid.T) []Node {
	values := []string{"", "", "1", "2", "10", "n0"}
	var nodes []Node
	for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
		labels := map[string]string{}
		for _, key := range []string{"z", "b", "b-old", "r"} {
			if v := rapid.SampledFrom(values).Draw(t, key); v != "" {
				labels[key] = v
			}
		}
		nodes = append(nodes, Node{Name: fmt.Sprintf("n%d", i), Labels: labels})
	}
	return nodes
}

// shares tells whether two nodes share a domain of the level, straight from the
// definition: the same label and wider domains, or, where a label is missing, the
// next narrower domain in common.
func shares(levels []Level, a, b Node, level int) bool {
	if a.Name == b.Name || level < 0 {
		return true
	}
	if level == len(levels) {
		return false
	}
	return shares(levels, a, b, level-1) && sameValue(levels, a, b, level)
}

func sameValue(levels []Level, a, b Node, level int) bool {
	if level == len(levels) {
		return a.Name == b.Name
	}
	x, y := label(levels[level], a), label(levels[level], b)
	if x == "" && y == "" {
		return sameValue(levels, a, b, level+1)
	}
	return x == y
}

func label(l Level, n Node) string {
	for _, key := range l.Keys {
		if v := n.Labels[key]; v != "" {
			return v
		}
	}
	return ""
}

// TestTreeAgainstDefinition checks that the domains are those of the definition,
// and that those of each level are intervals that lie in one wider domain each and
// cover every node once.
func TestTreeAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		tree := Build(zoneRack, nodes)
		if tree.Len() != len(nodes) || tree.Depths() != len(zoneRack)+2 {
			t.Fatalf("%d nodes and %d levels", tree.Len(), tree.Depths())
		}
		byName := map[string]Node{}
		for _, n := range nodes {
			byName[n.Name] = n
		}
		for depth := range tree.Depths() {
			checkIntervals(t, tree, depth)
			for a := range tree.Len() {
				for b := range tree.Len() {
					want := shares(zoneRack, byName[tree.Name(a)], byName[tree.Name(b)], depth-1)
					if got := tree.Domain(depth, a) == tree.Domain(depth, b); got != want {
						t.Fatalf("%s and %s share a %s: %v, want %v", tree.Name(a), tree.Name(b), tree.LevelName(depth), got, want)
					}
				}
			}
		}
	})
}

func checkIntervals(t *rapid.T, tree *Tree, depth int) {
	next := 0
	for d := range tree.Domains(depth) {
		from, to := tree.Interval(depth, d)
		if from != next || to <= from {
			t.Fatalf("%s %d is [%d, %d), after %d", tree.LevelName(depth), d, from, to, next)
		}
		next = to
		for n := from; n < to; n++ {
			if tree.Domain(depth, n) != d {
				t.Fatalf("node %d is in %s %d, not %d", n, tree.LevelName(depth), tree.Domain(depth, n), d)
			}
		}
		if depth == tree.Depths()-1 {
			continue
		}
		first, end := tree.Children(depth, d)
		begin, _ := tree.Interval(depth+1, first)
		if _, last := tree.Interval(depth+1, end-1); begin != from || last != to {
			t.Fatalf("the children of %s %d cover [%d, %d), not [%d, %d)", tree.LevelName(depth), d, begin, last, from, to)
		}
	}
	if next != tree.Len() {
		t.Fatalf("the domains of %s end at %d of %d", tree.LevelName(depth), next, tree.Len())
	}
}

func TestTreeNamesAndNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		tree := Build(zoneRack, nodes)
		for _, n := range nodes {
			if i, ok := tree.Number(n.Name); !ok || tree.Name(i) != n.Name {
				t.Fatalf("%s has number %d (%v), which is %s", n.Name, i, ok, tree.Name(i))
			}
		}
		if _, ok := tree.Number("stranger"); ok {
			t.Fatal("an unknown node has a number")
		}
		for depth := range tree.Depths() {
			if got, ok := tree.Depth(tree.LevelName(depth)); !ok || got != depth {
				t.Fatalf("level %s has depth %d, want %d", tree.LevelName(depth), got, depth)
			}
		}
		if _, ok := tree.Depth("planet"); ok {
			t.Fatal("an unknown level has a depth")
		}
	})
}

func TestTreeIsTheSameInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		shuffled := rapid.Permutation(nodes).Draw(t, "shuffled")
		if diff := cmp.Diff(Build(zoneRack, nodes), Build(zoneRack, shuffled), cmp.AllowUnexported(Tree{})); diff != "" {
			t.Fatal(diff)
		}
	})
}

// picture shows the domains of each level as name[nodes].
func picture(tree *Tree) []string {
	var out []string
	for depth := range tree.Depths() - 1 {
		line := tree.LevelName(depth) + ":"
		for d := range tree.Domains(depth) {
			from, to := tree.Interval(depth, d)
			line += " " + tree.DomainName(depth, d) + "["
			for n := from; n < to; n++ {
				if n > from {
					line += " "
				}
				line += tree.Name(n)
			}
			line += "]"
		}
		out = append(out, line)
	}
	return out
}

func TestTreeDomains(t *testing.T) {
	node := func(name string, labels ...string) Node {
		n := Node{Name: name, Labels: map[string]string{}}
		for i := 0; i < len(labels); i += 2 {
			n.Labels[labels[i]] = labels[i+1]
		}
		return n
	}
	for _, c := range []struct {
		name  string
		nodes []Node
		want  []string
	}{
		{"no nodes", nil, []string{"cluster:", "zone:", "block:", "rack:"}},
		{
			"natural order",
			[]Node{node("node-10", "r", "r10"), node("node-2", "r", "r10"), node("node-1", "r", "r2")},
			[]string{"cluster: cluster[node-1 node-2 node-10]", "zone: r2[node-1] r10[node-2 node-10]", "block: r2[node-1] r10[node-2 node-10]", "rack: r2[node-1] r10[node-2 node-10]"},
		},
		{
			"racks of the same name in two zones are two",
			[]Node{node("a", "z", "z1", "r", "r1"), node("b", "z", "z2", "r", "r1")},
			[]string{"cluster: cluster[a b]", "zone: z1[a] z2[b]", "block: r1[a] r1[b]", "rack: r1[a] r1[b]"},
		},
		{
			"a node without any label is alone at every level",
			[]Node{node("a", "z", "z1", "r", "r1"), node("b"), node("c")},
			[]string{"cluster: cluster[b c a]", "zone: b[b] c[c] z1[a]", "block: b[b] c[c] r1[a]", "rack: b[b] c[c] r1[a]"},
		},
		{
			"a missing wide label is replaced by the narrower domain, whatever else has its name",
			[]Node{node("a", "r", "x"), node("b", "r", "x"), node("c", "b", "x", "r", "x"), node("d", "z", "x", "r", "x"), node("x")},
			[]string{"cluster: cluster[x a b c d]", "zone: x[x] x[a b] x[c] x[d]", "block: x[x] x[a b] x[c] x[d]", "rack: x[x] x[a b] x[c] x[d]"},
		},
		{
			"the first key that is present counts",
			[]Node{node("a", "b", "new", "b-old", "old"), node("b", "b-old", "new"), node("c", "b-old", "old")},
			[]string{"cluster: cluster[a b c]", "zone: new[a b] old[c]", "block: new[a b] old[c]", "rack: a[a] b[b] c[c]"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, picture(Build(zoneRack, c.nodes))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDefaultLevels reads the labels that clusters really have: for each level the
// key that carries it.
func TestDefaultLevels(t *testing.T) {
	for name, keys := range map[string]map[string]string{
		"plain labels": {
			"zone": "topology.kubernetes.io/zone", "block": "topology.kubernetes.io/block",
			"rack": "topology.kubernetes.io/rack", "clique": "nvidia.com/gpu.clique",
		},
		"Topograph, first generation": {
			"core": "network.topology.kubernetes.io/datacenter", "spine": "network.topology.kubernetes.io/spine",
			"block": "network.topology.kubernetes.io/block", "clique": "network.topology.kubernetes.io/accelerator",
		},
		"Topograph, second generation": {
			"core": "network.topology.nvidia.com/core", "spine": "network.topology.nvidia.com/spine",
			"rack": "network.topology.nvidia.com/leaf", "clique": "network.topology.nvidia.com/accelerator",
		},
		"Topograph, third generation": {
			"core": "fabric.topograph.run/tier-2", "spine": "fabric.topograph.run/tier-1",
			"rack": "fabric.topograph.run/tier-0", "clique": "accelerator.topograph.run/domain",
		},
		"Google Cloud": {"block": "cloud.google.com/gce-topology-block", "rack": "cloud.google.com/gce-topology-subblock"},
	} {
		t.Run(name, func(t *testing.T) {
			labels := map[string]string{}
			for level, key := range keys {
				labels[key] = level + "1"
			}
			tree := Build(DefaultLevels(), []Node{{Name: "n1", Labels: labels}, {Name: "n2", Labels: labels}})
			for level := range keys {
				depth, ok := tree.Depth(level)
				if !ok || tree.Domains(depth) != 1 || tree.DomainName(depth, 0) != level+"1" {
					t.Errorf("level %s (%v) is not read from %s", level, ok, keys[level])
				}
			}
		})
	}
}

func TestNaturalOrder(t *testing.T) {
	want := []string{
		"", "07", "7", "10", "n", "n0", "n00", "n1", "n1-2", "n1-10", "n2", "n10",
		"n18446744073709551616", "n18446744073709551617", "nn", "r2", "r10",
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareNatural)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNaturalOrderIsTotal(t *testing.T) {
	word := rapid.StringMatching(`[a0-2-]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		if got := compareNatural(a, b); got != -compareNatural(b, a) || (got == 0) != (a == b) {
			t.Fatalf("%q and %q: %d and %d", a, b, got, compareNatural(b, a))
		}
		if compareNatural(a, b) <= 0 && compareNatural(b, c) <= 0 && compareNatural(a, c) > 0 {
			t.Fatalf("%q ≤ %q ≤ %q, but not %q ≤ %q", a, b, c, a, c)
		}
	})
}

func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{1_000, 5_000, 15_000} {
		for _, labelled := range []bool{true, false} {
			nodes := make([]Node, 0, n)
			for i := range n {
				node := Node{Name: fmt.Sprintf("node-%d", i*7919%n)}
				if labelled {
					node.Labels = map[string]string{
						"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/block": fmt.Sprintf("b%d", i/128),
						"topology.kubernetes.io/rack": fmt.Sprintf("r%d", i/16), "nvidia.com/gpu.clique": fmt.Sprintf("q%d", i/16),
					}
				}
				nodes = append(nodes, node)
			}
			b.Run(fmt.Sprintf("nodes=%d/labelled=%v", n, labelled), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					Build(DefaultLevels(), nodes)
				}
			})
		}
	}
}
