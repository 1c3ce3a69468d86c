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
	p.steps = searchSteps
	if p.widest > 0 && p.in(0, 0) > 0 {
		return p.tooNarrow()
	}
	return &Unschedulable{Code: CodeRoom, Detail: fmt.Sprintf(
		"each of its %d kinds of pods has room by itself, but not all of them together: what is free lies in pieces", len(p.classes)) + p.left(p.classes[0])}
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
	switch {
	case largest == 0:
		return &Unschedulable{Code: CodeSize, Detail: p.tooLarge(d)}
	case size < wanted:
		return &Unschedulable{Code: CodeSize, Detail: p.needs(d, largest, "") + has("the cluster has", "", size, largest)}
	case may < wanted:
		return &Unschedulable{Code: CodeConstraints, Detail: p.needs(d, largest, "") +
			has("the nodes that it may use have", " of them", may, largest) + p.left(d)}
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

func isAre(resource string, n int64) string {
	if n == 1 {
		return "1 is"
	}
	return quantity(resource, n) + " are"
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
		parts = []string{p.request(c, "") + " together"}
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

func has(subject, nodes string, n, perNode int) string {
	if perNode <= 1 {
		return fmt.Sprintf("; %s %d%s", subject, n, nodes)
	}
	return fmt.Sprintf("; %s room for %d", subject, n)
}

func available(n, perNode int) string {
	switch {
	case perNode > 1:
		return fmt.Sprintf("; there is room for %d", n)
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
func (p *Planner) scattered(homes int) *Unschedulable {
	return &Unschedulable{Code: CodeTopology, Detail: fmt.Sprintf(
		"must be in one %s, and its running members are in %d of them", p.s.Tree.LevelName(p.widest), homes)}
}

// tooNarrow says how far the best domain of the required level gets.
func (p *Planner) tooNarrow() *Unschedulable {
	t := p.s.Tree
	level := t.LevelName(p.widest)
	p.reset(0, t.Len())
	// The class that gets least far in its best domain is the one to speak of.
	worst, at, got := p.classes[0], -1, 0
	for _, d := range p.classes {
		best, most := p.roomiest(d)
		if at < 0 || most*len(worst.seats) < got*len(d.seats) {
			worst, at, got = d, best, most
		}
	}
	wanted := len(worst.seats)
	if got >= wanted {
		return &Unschedulable{Code: CodeTopology, Detail: p.tooNarrowTogether()}
	}
	c := &p.s.Classes[worst.class]
	_, perNode, _ := p.empty(c)
	where := "comes closest with"
	if len(p.r.Fixed) > 0 {
		where = "holds its running members and has room for"
	}
	detail := p.needs(worst, perNode, "free ") + fmt.Sprintf(" in one %s; %s %s %s %d of %d", level, level, t.DomainName(p.widest, at), where, got, wanted)
	if most := p.roomiestEmpty(c); most < wanted {
		detail += fmt.Sprintf("; even if empty, no %s has room for more than %d", level, most)
	}
	return &Unschedulable{Code: CodeTopology, Detail: detail + p.left(worst)}
}

// roomiest finds the domain of the required level with the most room for a class:
// if members run already, theirs.
func (p *Planner) roomiest(d demand) (best, most int) {
	t := p.s.Tree
	best, most = -1, -1
	clear(p.used)
	p.measure(d.class, 0, t.Len())
	for domain := range t.Domains(p.widest) {
		from, to := t.Interval(p.widest, domain)
		if len(p.r.Fixed) > 0 && (p.r.Fixed[0] < from || p.r.Fixed[0] >= to) {
			continue
		}
		if n := sum(p.caps[from:to]); n > most {
			best, most = domain, n
		}
	}
	return best, most
}

// roomiestEmpty is how many pods of the class the best domain of the required
// level would take if nothing ran.
func (p *Planner) roomiestEmpty(c *Class) int {
	t := p.s.Tree
	most := 0
	for domain := range t.Domains(p.widest) {
		n := 0
		for from, to := t.Interval(p.widest, domain); from < to; from++ {
			n += p.whenEmpty(c, from)
		}
		most = max(most, n)
	}
	return most
}

// tooNarrowTogether speaks of a gang whose classes have room in one domain of the
// required level each, but not together.
func (p *Planner) tooNarrowTogether() string {
	t := p.s.Tree
	level, width := t.LevelName(p.widest), len(p.s.Resources)
	text := fmt.Sprintf("no one %s has room for all its %d kinds of pods together", level, len(p.classes))
	if len(p.r.Fixed) > 0 {
		return text + " where its running members are"
	}
	for r, want := range p.total() {
		best, most := 0, int64(0)
		for domain := range t.Domains(p.widest) {
			free := int64(0)
			for from, to := t.Interval(p.widest, domain); from < to; from++ {
				free += max(0, p.s.Free[from*width+r])
			}
			if free > most {
				best, most = domain, free
			}
		}
		if most < want {
			return text + fmt.Sprintf(": they need %s, and %s %s comes closest with %s", p.amount(r, want), level, t.DomainName(p.widest, best), quantity(p.s.Resources[r], most))
		}
	}
	return text
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
