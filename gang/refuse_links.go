package gang

import (
	"fmt"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// shortOfLinks says that there would be room for the class if it did not matter how
// a pod's GPUs are connected, or gives nil. have is the room as it is.
func (p *Planner) shortOfLinks(d demand, have, perNode int) *Unschedulable {
	c := &p.s.Classes[d.class]
	required := c.LinkRequired != topology.Requirement{}
	if p.s.gpusOf(c) < 2 || !required && !p.linked {
		return nil
	}
	p.blind = true
	clear(p.used)
	could := p.measure(d.class, 0, p.s.Tree.Len())
	p.blind = false
	if could < len(d.seats) {
		return nil
	}
	text := p.needs(d, perNode, "free ")
	switch {
	case c.LinkRequired.OneNUMA:
		text += ", on one NUMA node"
	case required:
		text += fmt.Sprintf(", connected by %s", c.LinkRequired)
	}
	text += available(have, perNode) + p.unusable(c, required)
	return &Unschedulable{Code: CodeLinks, Detail: text + p.left(d)}
}

// unusable says why nodes that have the GPUs, as caps are measured, do not serve.
func (p *Planner) unusable(c *Class, required bool) string {
	unlinked, silent, torn := 0, 0, 0
	for n, room := range p.caps {
		switch {
		case room == 0 || p.linked && p.fit(c, n) >= room:
		case !p.linked || p.s.NodeGPUs[n].Table == nil:
			silent++
		case p.s.NodeGPUs[n].Rule == topology.OneNUMANode:
			torn++
		default:
			unlinked++
		}
	}
	text := ""
	if torn > 0 {
		text += fmt.Sprintf("; on %s more GPUs are free, but not on one NUMA node as the kubelet there demands", count(torn, "node"))
	}
	if unlinked > 0 {
		text += fmt.Sprintf("; on %s more GPUs are free, but %s", count(unlinked, "node"), unlike(required))
	}
	if silent > 0 {
		text += fmt.Sprintf("; %s with room: links not reported", count(silent, "node"))
	}
	return text
}

// unlike says what is wrong with GPUs that are free and cannot be used.
func unlike(required bool) string {
	if required {
		return "not connected so"
	}
	return "unhealthy, or about to be taken"
}
