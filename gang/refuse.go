package gang

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// explain says why nothing fits, for the first thing that is wrong: the size of
// the cluster, what its nodes refuse, what is free, or the required level.
func (p *Planner) explain(widest int) *Unschedulable {
	if p.s.Tree.Len() == 0 {
		return &Unschedulable{Code: CodeSize, Detail: "the cluster has no nodes"}
	}
	p.allowed = nil
	p.reset()
	for _, d := range p.classes {
		if why := p.short(d); why != nil {
			return why
		}
	}
	if widest > 0 && p.in(0, 0) != nil {
		return p.tooNarrow(widest)
	}
	return &Unschedulable{Code: CodeRoom, Detail: fmt.Sprintf(
		"each of its %d kinds of pods has room by itself, but not all of them together", len(p.classes)) + p.left(p.classes[0])}
}

// short says why the cluster lacks room for one class by itself, or nil.
func (p *Planner) short(d demand) *Unschedulable {
	c := &p.s.Classes[d.class]
	p.measure(d.class, 0, p.s.Tree.Len())
	have, perNode := sum(p.caps), slices.Max(p.caps)
	if have >= d.n {
		return nil
	}
	size, largest, may := p.empty(c)
	switch {
	case largest == 0:
		return &Unschedulable{Code: CodeSize, Detail: p.tooLarge(c)}
	case size < d.n:
		return &Unschedulable{Code: CodeSize, Detail: p.needs(d, largest, "") + p.has("the cluster has", size, largest)}
	case may < d.n:
		return &Unschedulable{Code: CodeConstraints, Detail: p.needs(d, largest, "") +
			p.has("the nodes it may use have", may, largest) + p.left(d)}
	}
	return &Unschedulable{Code: CodeRoom, Detail: p.needs(d, max(largest, perNode), "free ") + p.available(have, largest) + p.scarce(d) + p.left(d)}
}

// empty counts how many pods of the class the cluster would take if nothing ran:
// on all nodes, at most on one node, and on the nodes that it may use.
func (p *Planner) empty(c *Class) (all, largest, may int) {
	width := len(p.s.Resources)
	for n := range p.s.Tree.Len() {
		k := room(c, p.s.Allocatable[n*width:(n+1)*width])
		if c.MaxPerNode > 0 {
			k = min(k, c.MaxPerNode)
		}
		all += k
		largest = max(largest, k)
		if p.usable(c, n) {
			may += k
		}
	}
	return all, largest, may
}

// tooLarge says what no node has enough of.
func (p *Planner) tooLarge(c *Class) string {
	width := len(p.s.Resources)
	var parts []string
	for r, want := range c.Request {
		most := int64(0)
		for n := range p.s.Tree.Len() {
			most = max(most, p.s.Allocatable[n*width+r])
		}
		if want > most {
			parts = append(parts, fmt.Sprintf("%s (the most is %s)", p.amount(r, want), quantity(p.s.Resources[r], most)))
		}
	}
	if len(parts) == 0 {
		return "no node has " + p.request(c, "") + " together"
	}
	return "no node has " + strings.Join(parts, " or ")
}

// needs says what the class wants: whole nodes where a node holds one of them.
func (p *Planner) needs(d demand, perNode int, free string) string {
	c := &p.s.Classes[d.class]
	each := ""
	if d.n > 1 {
		each = " each"
	}
	if perNode <= 1 {
		return fmt.Sprintf("needs %s with %s%s", count(d.n, "node"), p.request(c, free), each)
	}
	return fmt.Sprintf("needs room for %s of %s%s", count(d.n, "member"), p.request(c, ""), each)
}

func (p *Planner) has(subject string, n, perNode int) string {
	if perNode <= 1 {
		return fmt.Sprintf("; %s %d", subject, n)
	}
	return fmt.Sprintf("; %s room for %d", subject, n)
}

func (p *Planner) available(n, perNode int) string {
	if perNode <= 1 {
		if n == 1 {
			return "; 1 has them"
		}
		return fmt.Sprintf("; %d have them", n)
	}
	return fmt.Sprintf("; there is room for %d", n)
}

// scarce names what the nodes that may be used have too little of for one pod.
func (p *Planner) scarce(d demand) string {
	c := &p.s.Classes[d.class]
	width := len(p.s.Resources)
	nodes := make([]int, width)
	for n := range p.s.Tree.Len() {
		if !p.usable(c, n) {
			continue
		}
		for r, want := range c.Request {
			if want > 0 && p.free[n*width+r] < want {
				nodes[r]++
			}
		}
	}
	order := make([]int, 0, width)
	for r, n := range nodes {
		if n > 0 {
			order = append(order, r)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(nodes[b], nodes[a]) })
	if len(order) == 1 && order[0] == p.s.GPU {
		return "" // what is needed says it already
	}
	var parts []string
	for _, r := range order[:min(len(order), 3)] {
		parts = append(parts, fmt.Sprintf("%s on %s", p.s.Resources[r], count(nodes[r], "node")))
	}
	if len(parts) == 0 {
		return ""
	}
	return "; too little " + strings.Join(parts, ", ")
}

// left says which nodes are not used at all, and why.
func (p *Planner) left(d demand) string {
	var parts []string
	for _, r := range p.s.Classes[d.class].Ineligible {
		parts = append(parts, fmt.Sprintf("%d %s", r.N, r.Reason))
	}
	excluded := 0
	for _, out := range p.r.Excluded {
		if out {
			excluded++
		}
	}
	if excluded > 0 {
		parts = append(parts, fmt.Sprintf("%d refused it lately", excluded))
	}
	if len(parts) == 0 {
		return ""
	}
	return "; nodes left out: " + strings.Join(parts, ", ")
}

// scattered says that the running members are in several domains of the required
// level already.
func (p *Planner) scattered(depth, homes int) *Unschedulable {
	return &Unschedulable{Code: CodeTopology, Detail: fmt.Sprintf(
		"must be in one %s, and its running members are in %d of them", p.s.Tree.LevelName(depth), homes)}
}

// tooNarrow says how far the best domain of the required level gets.
func (p *Planner) tooNarrow(depth int) *Unschedulable {
	t := p.s.Tree
	level := t.LevelName(depth)
	p.reset()
	home, where := -1, "comes closest with"
	if len(p.r.Fixed) > 0 {
		home, where = t.Domain(depth, p.r.Fixed[0]), "holds its running members, and has room for"
	}
	// The class that gets least far in its best domain is the one to speak of.
	worst, at, got, perNode := p.classes[0], -1, 0, 1
	for _, d := range p.classes {
		best, most := -1, -1
		p.measure(d.class, 0, t.Len())
		for domain := range t.Domains(depth) {
			if home >= 0 && domain != home {
				continue
			}
			from, to := t.Interval(depth, domain)
			if n := sum(p.caps[from:to]); n > most {
				best, most = domain, n
			}
		}
		if at < 0 || most*worst.n < got*d.n {
			worst, at, got = d, best, most
			_, perNode, _ = p.empty(&p.s.Classes[d.class])
		}
	}
	return &Unschedulable{Code: CodeTopology, Detail: p.needs(worst, perNode, "free ") +
		fmt.Sprintf(" in one %s; %s %s %s %d of %d", level, level, t.DomainName(depth, at), where, min(got, worst.n), worst.n) + p.left(worst)}
}

// request lists what one pod takes: its GPUs, or if it has none the rest.
func (p *Planner) request(c *Class, free string) string {
	if p.s.GPU >= 0 && c.Request[p.s.GPU] > 0 {
		return quantity(p.s.Resources[p.s.GPU], c.Request[p.s.GPU]) + " " + free + p.s.Resources[p.s.GPU]
	}
	var parts []string
	for r, want := range c.Request {
		if want > 0 && p.s.Resources[r] != "pods" {
			parts = append(parts, quantity(p.s.Resources[r], want)+" "+free+p.s.Resources[r])
		}
	}
	if len(parts) == 0 {
		return "one more pod"
	}
	return strings.Join(parts[:min(len(parts), 4)], " and ")
}

func (p *Planner) amount(r int, n int64) string {
	return quantity(p.s.Resources[r], n) + " " + p.s.Resources[r]
}

// quantity writes an amount as people do: cores, binary bytes, pieces.
func quantity(resource string, n int64) string {
	switch resource {
	case "cpu":
		return strconv.FormatFloat(float64(n)/1000, 'g', 6, 64)
	case "memory", "ephemeral-storage":
		units := []string{"", "Ki", "Mi", "Gi", "Ti"}
		v, u := float64(n), 0
		for v >= 1024 && u < len(units)-1 {
			v /= 1024
			u++
		}
		return strconv.FormatFloat(v, 'g', 4, 64) + units[u]
	}
	return strconv.FormatInt(n, 10)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
