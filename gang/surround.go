package gang

import "github.com/lockstep-scheduler/lockstep/topology"

// enoughRefusals is how many parts of a domain must be out for the rest of it to be
// expected to be no better.
const enoughRefusals = 3

// Surround widens a set of nodes that refused a gang by those that probably will:
// where three domains inside a wider one are out as a whole, all of that one is. What
// refuses a pod on many nodes (the zone of its volume, a device that they lack) mostly
// follows the domains, so that few attempts find the nodes without it. The cluster
// as a whole is never out by this. It gives nil if that adds no node.
func Surround(t *topology.Tree, refused []bool) []bool {
	if refused == nil {
		return nil
	}
	out := make([]bool, t.Len())
	copy(out, refused)
	added := false
	for depth := t.Depths() - 2; depth > 0; depth-- {
		for domain := range t.Domains(depth) {
			whole := 0
			first, end := t.Children(depth, domain)
			for child := first; child < end; child++ {
				if allOut(out, t, depth+1, child) {
					whole++
				}
			}
			if whole < enoughRefusals || whole == end-first {
				continue
			}
			added = true
			from, to := t.Interval(depth, domain)
			for n := from; n < to; n++ {
				out[n] = true
			}
		}
	}
	if !added {
		return nil
	}
	return out
}

func allOut(out []bool, t *topology.Tree, depth, domain int) bool {
	from, to := t.Interval(depth, domain)
	for n := from; n < to; n++ {
		if !out[n] {
			return false
		}
	}
	return true
}
