package gang

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// explain says why nothing fits, for the first thing that is wrong: the size of
// the cluster, what its nodes refuse, what is free, or the required level.
func (p *Planner) explain() *Unschedulable {
	if p.s.Tree.Len() == 0 {
		return &Unschedulable{Code: CodeSize, Detail: "the cluster has no nodes"}
	}
	p.reset(0, p.s.Tree.Len())
	for _, d := range p.classes {
		if why := p.short(d); why != nil {
			return why
		}
	}
	if why := p.shortTogether(); why != nil {
		return why
	}
	if p.widest > 0 {
		p.steps = searchSteps
		if p.in(0, 0) > 0 {
			return p.tooNarrow()
		}
	}
	return &Unschedulable{Code: CodeRoom, Detail: fmt.Sprintf(
		"each of its %d kinds of pods has room by itself, but not all of them together (%s)", len(p.classes), p.kinds()) + p.left(p.classes[0])}
}

// short says why the cluster lacks room for one class by itself, or nil.
func (p *Planner) short(d demand) *Unschedulable {
	c := &p.s.Classes[d.class]
	clear(p.used)
	have, wanted := p.measure(d.class, 0, p.s.Tree.Len()), len(d.seats)
	if have >= wanted {
		return nil
	}
	size, largest, may := p.empty(c)
	if why := p.shortOfLinks(d, have, largest); why != nil {
		return why
	}
	if why := p.shortOfSlices(d, have); why != nil {
		return why
	}
	switch {
	case largest == 0:
		return &Unschedulable{Code: CodeSize, Detail: p.tooLarge(d)}
	case size < wanted:
		return &Unschedulable{Code: CodeSize, Detail: p.needs(d, largest, "") + theClusterHas(size, largest)}
	case may < wanted:
		return &Unschedulable{Code: CodeConstraints, Detail: p.needs(d, largest, "") +
			mayUse(may, largest) + p.left(d)}
	}
	return &Unschedulable{Code: CodeRoom, Detail: p.needs(d, largest, "free ") + available(have, largest) + p.lacking(d) + p.left(d)}
}

// shortTogether says of what the cluster has too little for all classes together,
// or nil.
func (p *Planner) shortTogether() *Unschedulable {
	width := len(p.s.Resources)
	for r, want := range p.total() {
		var free, all int64
		for n := range p.s.Tree.Len() {
			free += max(0, p.s.Free[n*width+r])
			all += p.s.Allocatable[n*width+r]
		}
		switch {
		case want > all:
			return &Unschedulable{Code: CodeSize, Detail: fmt.Sprintf("needs %s in all; the cluster has %s", p.amount(r, want), quantity(p.s.Resources[r], all))}
		case want > free:
			return &Unschedulable{Code: CodeRoom, Detail: fmt.Sprintf("needs %s in all; %s free", p.amount(r, want), isAre(p.s.Resources[r], free))}
		}
	}
	return nil
}

// empty counts how many pods of the class the cluster would take if nothing ran:
// on all nodes, at most on one node, and on the nodes that it may use.
func (p *Planner) empty(c *Class) (all, largest, may int) {
	for n := range p.s.Tree.Len() {
		k := p.whenEmpty(c, n)
		all += k
		largest = max(largest, k)
		if p.usable(c, n) {
			may += k
		}
	}
	return all, largest, may
}

// whenEmpty is how many pods of the class the node would take if nothing ran on it.
func (p *Planner) whenEmpty(c *Class, node int) int {
	width := len(p.s.Resources)
	k := room(c, p.s.GPU, p.s.Allocatable[node*width:(node+1)*width])
	if c.MaxPerNode > 0 {
		k = min(k, c.MaxPerNode)
	}
	return k
}

// tooLarge says what no node has enough of.
func (p *Planner) tooLarge(d demand) string {
	c := &p.s.Classes[d.class]
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
		parts = []string{p.everything(c, "") + " together"}
	}
	whose := ""
	if role := p.role(d); role != "" {
		whose = " for role " + role
	}
	return "no node has " + strings.Join(parts, " or ") + whose
}

// role names the role of all seats of the class, if it takes that to tell them
// from others.
func (p *Planner) role(d demand) string {
	role := p.r.Seats[d.seats[0]].Role
	if len(p.classes) < 2 || slices.ContainsFunc(d.seats, func(seat int) bool { return p.r.Seats[seat].Role != role }) {
		return ""
	}
	return role
}

// needs says what the class wants: whole nodes where a node holds one of them.
func (p *Planner) needs(d demand, perNode int, free string) string {
	c := &p.s.Classes[d.class]
	n, each, who := len(d.seats), "", ""
	if n > 1 {
		each = " each"
	}
	if role := p.role(d); role != "" {
		who = "role " + role + " "
	}
	if perNode <= 1 {
		return fmt.Sprintf("%sneeds %s with %s%s", who, count(n, "node"), p.request(c, free), each)
	}
	return fmt.Sprintf("%sneeds room for %s of %s%s", who, count(n, "member"), p.request(c, ""), each)
}

func theClusterHas(n, perNode int) string {
	if perNode <= 1 {
		return fmt.Sprintf("; the cluster has %d", n)
	}
	return fmt.Sprintf("; the cluster has room for %d", n)
}

func mayUse(n, perNode int) string {
	switch {
	case perNode > 1:
		return fmt.Sprintf("; the nodes that it may use have room for %d", n)
	case n == 0:
		return "; no such node may be used"
	}
	return fmt.Sprintf("; only %s may be used", count(n, "such node"))
}

func available(n, perNode int) string {
	switch {
	case perNode > 1:
		return fmt.Sprintf("; there is room for %d", n)
	case n == 0:
		return "; none has them"
	case n == 1:
		return "; 1 has them"
	}
	return fmt.Sprintf("; %d have them", n)
}

// lacking names what the nodes that may be used have too little of for one pod.
func (p *Planner) lacking(d demand) string {
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
	return "; short of " + strings.Join(parts, ", ")
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
