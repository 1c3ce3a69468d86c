package topology

import (
	"math"
	"math/bits"
	"slices"
)

// Rule is how a node's kubelet and its device plugin choose GPUs.
type Rule uint8

// The rules.
const (
	// ByLinks is NVIDIA's device plugin: its best-effort policy looks at links.
	ByLinks Rule = iota
	// AnySet looks at nothing.
	AnySet
	// OneNUMANode is ByLinks inside one NUMA node, any that has so many free: what
	// kubelet's topology manager demands by its policy single-numa-node. Where the
	// NUMA node of a GPU is not known it is ByLinks.
	OneNUMANode
)

// Outcome is what a node's device plugin may hand out.
type Outcome struct {
	// Sets are all that it may pick: where its rule is indifferent, which one comes
	// is not ours to choose.
	Sets []Set
	// Worst, Expected and Best are of the rings of Sets in GB/s, Expected with each
	// of them equally likely; 0 for one GPU.
	Worst, Expected, Best float64
}

// pairScore is how NVIDIA's device plugin values two GPUs in one set: by their path
// and their direct NVLinks; those into switches are not seen by it. Source:
// go-gpuallocator, gpuallocator/besteffort_policy.go and internal/links/device.go.
func (g *Graph) pairScore(i, j int) int32 {
	l := g.Link(i, j)
	path := l.Path
	if path == PathUnknown {
		path = PathSystem
		if g.oneNUMA(SetOf(i, j)) {
			path = PathNode
		}
	}
	score := int32(path) * 10 // SYS 10, NODE 20, PHB 30, PXB 40, PIX 50, one board 60
	if !l.Switched {
		score += int32(l.NVLinks) * 100
	}
	return score
}

// setScores sums the pair scores of each set.
func (g *Graph) setScores() []int32 {
	out := make([]int32, 1<<g.n)
	for s := Set(1); int(s) < len(out); s++ {
		rest := s & (s - 1)
		first := bits.TrailingZeros32(uint32(s))
		out[s] = out[rest]
		for r := rest; r != 0; r &= r - 1 {
			out[s] += g.pairScore(first, bits.TrailingZeros32(uint32(r)))
		}
	}
	return out
}

// bestEffort gives every set of k that the plugin's best-effort policy may take
// from the free GPUs. The policy divides all free GPUs into sets of k, and one
// smaller set for what is left over, so that the scores of the sets add up to the
// most; of such a division it takes the set with the highest score. Between equal
// divisions and equal sets the order in which kubelet names the GPUs decides, which
// is that of a Go map.
func bestEffort(score []int32, free Set, k int) []Set {
	if k == 1 {
		return subsets(free, 1) // every GPU alone scores 0
	}
	all := division{score: score, k: k, limit: math.MaxInt32}
	most := all.best(free)
	// A set can be taken if some best division has it, and none of higher score.
	limited := map[int32]*division{}
	return slices.DeleteFunc(subsets(free, k), func(s Set) bool {
		own := score[s]
		if own+all.best(free&^s) != most {
			return true
		}
		d := limited[own]
		if d == nil {
			d = &division{score: score, k: k, limit: own}
			limited[own] = d
		}
		return own+d.best(free&^s) != most
	})
}

// division finds the best division of GPUs into sets of k, none of which scores
// more than limit, and a smaller one for the remainder, which may.
type division struct {
	score []int32
	k     int
	limit int32
	known map[Set]int32
}

// impossible is less than any sum of scores, and stays so with some added.
const impossible = math.MinInt32 / 2

func (d *division) best(free Set) int32 {
	if free == 0 {
		return 0
	}
	if sum, ok := d.known[free]; ok {
		return sum
	}
	most := int32(impossible)
	first := free.lowest()
	remainder := free.Len() % d.k
	each(free&^first, d.k-1, func(s Set) {
		if s |= first; d.score[s] <= d.limit {
			most = max(most, d.score[s]+d.best(free&^s))
		}
	})
	if remainder > 0 {
		each(free&^first, remainder-1, func(s Set) {
			s |= first
			most = max(most, d.score[s]+d.best(free&^s))
		})
	}
	if d.known == nil {
		d.known = map[Set]int32{}
	}
	d.known[free] = most
	return most
}

// each calls visit with every subset of k GPUs, those with the lowest GPUs first.
func each(of Set, k int, visit func(Set)) { extend(0, of, k, visit) }

// extend completes the set by k of the others.
func extend(s, by Set, k int, visit func(Set)) {
	if k == 0 {
		visit(s)
		return
	}
	for by.Len() >= k {
		first := by.lowest()
		by &^= first
		extend(s|first, by, k-1, visit)
	}
}

func subsets(of Set, k int) []Set {
	var out []Set
	each(of, k, func(s Set) { out = append(out, s) })
	return out
}
