package gang

import "fmt"

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
	text := fmt.Sprintf("no one %s has room for all its %d kinds of pods together (%s)", level, len(p.classes), p.kinds())
	if len(p.r.Fixed) > 0 {
		return text + "; its running members are in " + level + " " + t.DomainName(p.widest, t.Domain(p.widest, p.r.Fixed[0]))
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
			return text + fmt.Sprintf("; they need %s, and %s %s comes closest with %s", p.amount(r, want), level, t.DomainName(p.widest, best), quantity(p.s.Resources[r], most))
		}
	}
	return text
}
