package gang

// measure fills caps with how many more pods of the class each node in the
// interval takes, and gives their sum.
func (p *Planner) measure(class ClassID, from, to int) int {
	c := &p.s.Classes[class]
	width := len(p.s.Resources)
	sum := 0
	for n := from; n < to; n++ {
		p.caps[n] = 0
		if !p.usable(c, n) {
			continue
		}
		k := room(c, p.s.GPU, p.free[n*width:(n+1)*width])
		if c.MaxPerNode > 0 {
			k = min(k, max(0, c.MaxPerNode-int(p.used[n])))
		}
		if k > 0 {
			k = min(k, p.fit(c, n))
		}
		p.caps[n] = k
		sum += k
	}
	return p.trim(class, from, to, sum)
}

func (p *Planner) usable(c *Class, node int) bool {
	return (c.Eligible == nil || c.Eligible[node]) &&
		(p.r.Excluded == nil || !p.r.Excluded[node]) &&
		(!p.narrowed || p.allowed[node])
}

// room is how many pods of the class fit into what is free.
func room(c *Class, gpu int, free []int64) int {
	if gpu >= 0 && c.Request[gpu] > free[gpu] && c.Request[gpu] > 0 {
		return 0 // the usual reason, and soonest found
	}
	const plenty = 1 << 30 // a pod takes at least one of "pods"
	n := int64(plenty)
	for r, want := range c.Request {
		if want <= 0 {
			continue
		}
		if free[r] < want {
			return 0
		}
		n = min(n, free[r]/want)
	}
	return int(n)
}

func sum(list []int) int {
	total := 0
	for _, n := range list {
		total += n
	}
	return total
}
