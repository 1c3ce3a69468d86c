package gang

import "github.com/lockstep-scheduler/lockstep/topology"

// MaxScore is the best of Scores.
const MaxScore = 10

// Scores ranks the nodes, 0 to MaxScore, for a pod that takes no GPUs and is not
// planned, as Place would: nodes without GPUs first; then those in a domain that is
// broken already, the more of the node's GPUs are in use the better; at last those in
// a domain of which all GPUs are free, which a gang may want whole. all and free are
// the GPUs of each node.
func Scores(t *topology.Tree, all, free []int64) []int {
	out := make([]int, t.Len())
	whole, until := false, 0
	for n := range out {
		if n == until {
			whole, until = wholeDomain(t, all, free, n)
		}
		switch {
		case all[n] == 0:
			out[n] = MaxScore
		case whole:
			out[n] = 0
		default:
			const broken, most = 2, MaxScore - 1
			used := min(max(all[n]-free[n], 0), all[n])
			out[n] = broken + int((most-broken)*used/all[n])
		}
	}
	return out
}

// wholeDomain tells whether the narrowest domain of several nodes that holds the node
// has GPUs, all of them free, and where it ends.
func wholeDomain(t *topology.Tree, all, free []int64, node int) (whole bool, end int) {
	depth := t.Depths() - 1
	first, end := t.Interval(depth, t.Domain(depth, node))
	for ; depth > 1 && end-first < 2; depth-- {
		first, end = t.Interval(depth-1, t.Domain(depth-1, node))
	}
	sum := tally{}
	for n := first; n < end; n++ {
		sum = sum.add(max(0, free[n]), all[n])
	}
	return sum.whole(), end
}
