package topology

import "math/bits"

// bottlenecks gives, for each set of n GPUs, the width of its best ring: the most,
// over all Hamiltonian cycles, of the least width of an edge. Two GPUs are a ring
// of one edge, which carries both directions; fewer than two have none, 0.
//
// It is Held and Karp's recursion with min for the sum: the best path from the
// lowest GPU of a set over all of it to each other one, from the paths over one GPU
// less. n·n·2ⁿ steps.
func bottlenecks(n int, width func(i, j int) float32) []float32 {
	w := make([]float32, n*n)
	for i := range n {
		for j := range n {
			if i != j {
				w[i*n+j] = width(i, j)
			}
		}
	}
	sets := 1 << n
	path := make([]float32, sets*n) // path[s*n+v]: from the lowest of s over s to v
	ring := make([]float32, sets)
	for s := 1; s < sets; s++ {
		first := bits.TrailingZeros32(uint32(s))
		rest := s & (s - 1)
		single := rest&(rest-1) == 0
		for r := rest; r != 0; r &= r - 1 {
			v := bits.TrailingZeros32(uint32(r))
			best := float32(0)
			if single {
				best = w[first*n+v]
			} else {
				before := path[(s&^(1<<v))*n:]
				for q := rest &^ (1 << v); q != 0; q &= q - 1 {
					u := bits.TrailingZeros32(uint32(q))
					best = max(best, min(before[u], w[u*n+v]))
				}
			}
			path[s*n+v] = best
			ring[s] = max(ring[s], min(best, w[v*n+first]))
		}
	}
	return ring
}
