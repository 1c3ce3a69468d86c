package topology

import (
	"cmp"
	"slices"
	"strings"
)

// Node is what Build needs to know of a node.
type Node struct {
	Name   string
	Labels map[string]string
}

// Tree holds the nodes of a cluster and their domains. It is immutable: build a
// new one when a node comes, goes or changes its labels, and share it freely.
//
// Nodes are numbered 0..Len()-1 in depth-first order, so that each domain of
// each level is a contiguous interval of node numbers. Levels are numbered by
// depth: 0 is Cluster, then the configured levels from wide to narrow, and
// Depths()-1 is Host. A node that lacks the label of a level shares that level
// only with the nodes that share its next narrower one.
type Tree struct {
	levels  []string // by depth
	names   []string // by node
	numbers map[string]int
	starts  [][]int    // by depth: the first node of each domain, and Len() at last
	domain  [][]int32  // by depth: the domain of each node
	titles  [][]string // by depth: the name of each domain
}

// place is a node with the values of its levels, from wide to narrow, host last.
type place struct {
	name string
	path []string
}

// Build makes the tree of the nodes. The order of the nodes does not matter;
// their names must differ.
func Build(levels []Level, nodes []Node) *Tree {
	t := &Tree{levels: []string{Cluster}, numbers: make(map[string]int, len(nodes))}
	for _, l := range levels {
		t.levels = append(t.levels, l.Name)
	}
	t.levels = append(t.levels, Host)

	places := make([]place, 0, len(nodes))
	for _, n := range nodes {
		places = append(places, place{n.Name, path(levels, n)})
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(slices.CompareFunc(a.path, b.path, compareNatural), cmp.Compare(a.name, b.name))
	})
	for i, p := range places {
		t.names = append(t.names, p.name)
		t.numbers[p.name] = i
	}
	for depth := range t.levels {
		t.divide(places, depth)
	}
	return t
}

// path gives the node's value at each configured level and host. Where a label is
// missing, the next narrower value stands in, with one more slash before it: label
// values have none, so it meets only values that come from the same level.
func path(levels []Level, n Node) []string {
	out := make([]string, len(levels)+1)
	narrower := n.Name
	out[len(levels)] = n.Name
	for i := len(levels) - 1; i >= 0; i-- {
		value := ""
		for _, key := range levels[i].Keys {
			if value = n.Labels[key]; value != "" {
				break
			}
		}
		if value == "" {
			value = "/" + narrower
		}
		out[i], narrower = value, value
	}
	return out
}

// divide finds the domains of one level among the sorted places.
func (t *Tree) divide(places []place, depth int) {
	domain := make([]int32, len(places))
	var starts []int
	var titles []string
	for i, p := range places {
		if i == 0 || !slices.Equal(p.path[:depth], places[i-1].path[:depth]) {
			starts = append(starts, i)
			title := Cluster
			if depth > 0 {
				title = strings.TrimLeft(p.path[depth-1], "/")
			}
			titles = append(titles, title)
		}
		domain[i] = int32(len(starts) - 1)
	}
	t.domain = append(t.domain, domain)
	t.starts = append(t.starts, append(starts, len(places)))
	t.titles = append(t.titles, titles)
}

// Len is the number of nodes.
func (t *Tree) Len() int { return len(t.names) }

// Depths is the number of levels, Cluster and Host among them.
func (t *Tree) Depths() int { return len(t.levels) }

// Depth gives the depth of a level by its name.
func (t *Tree) Depth(level string) (int, bool) {
	depth := slices.Index(t.levels, level)
	return depth, depth >= 0
}

// LevelName is the inverse of Depth.
func (t *Tree) LevelName(depth int) string { return t.levels[depth] }

// Name is the name of a node.
func (t *Tree) Name(node int) string { return t.names[node] }

// Number is the inverse of Name.
func (t *Tree) Number(name string) (int, bool) {
	n, ok := t.numbers[name]
	return n, ok
}

// Domains is the number of domains of a level. They are numbered in the order of
// their nodes.
func (t *Tree) Domains(depth int) int { return len(t.titles[depth]) }

// Domain is the domain of a level that holds the node.
func (t *Tree) Domain(depth, node int) int { return int(t.domain[depth][node]) }

// Interval gives the nodes of a domain: from ≤ node < to.
func (t *Tree) Interval(depth, domain int) (from, to int) {
	return t.starts[depth][domain], t.starts[depth][domain+1]
}

// DomainName is the label value of a domain, unique only within its wider domain,
// or, where the label is missing, the name of the narrower one that stands in.
func (t *Tree) DomainName(depth, domain int) string { return t.titles[depth][domain] }

// Children gives the domains of the next narrower level inside the domain:
// from ≤ domain < to. The domain must not be a host.
func (t *Tree) Children(depth, domain int) (from, to int) {
	first, end := t.Interval(depth, domain)
	if first == end {
		return 0, 0
	}
	return t.Domain(depth+1, first), t.Domain(depth+1, end-1) + 1
}

// compareNatural orders names as people do: numbers in them by value, so that r2
// comes before r10. Names that differ only in leading zeros are ordered as text.
func compareNatural(a, b string) int {
	if a == b {
		return 0 // most comparisons are of nodes in the same wide domains
	}
	for x, y := a, b; ; {
		i, j := digits(x), digits(y)
		if i > 0 && j > 0 {
			m, n := strings.TrimLeft(x[:i], "0"), strings.TrimLeft(y[:j], "0")
			if c := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); c != 0 {
				return c
			}
			x, y = x[i:], y[j:]
			continue
		}
		switch {
		case x == "" || y == "":
			return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(a, b))
		case x[0] != y[0]:
			return cmp.Compare(x[0], y[0])
		}
		x, y = x[1:], y[1:]
	}
}

// digits counts the decimal digits that the text begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}
