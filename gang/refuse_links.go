package gang

import (
	"fmt"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// shortOfLinks says that there would be room for the class if it did not matter how
// a pod's GPUs are connected, or gives nil. have is the room as it is.
func (p *Planner) shortOfLinks(d demand, have, perNode int) *Unschedulable {
	c := &p.s.Classes[d.class]
	if c.LinkRequired == (topology.Requirement{}) || p.s.gpusOf(c) < 2 {
		return nil
	}
	p.blind = true
	clear(p.used)
	could := p.measure(d.class, 0, p.s.Tree.Len())
	p.blind = false
	if could < len(d.seats) {
		return nil
	}
	unlinked, silent := 0, 0
	for n, room := range p.caps {
		switch {
		case room == 0 || p.linked && p.fit(c, n) >= room:
		case !p.linked || p.s.NodeGPUs[n].Table == nil:
			silent++
		default:
			unlinked++
		}
	}
	text := p.needs(d, perNode, "free ") + fmt.Sprintf(", connected by %s", c.LinkRequired)
	if c.LinkRequired.OneNUMA {
		text = p.needs(d, perNode, "free ") + ", on one NUMA node"
	}
	text += available(have, perNode)
	if unlinked > 0 {
		text += fmt.Sprintf("; on %s more GPUs are free, but not connected so", count(unlinked, "node"))
	}
	if silent > 0 {
		text += fmt.Sprintf("; %s with room: links not reported", count(silent, "node"))
	}
	return &Unschedulable{Code: CodeLinks, Detail: text + p.left(d)}
}
