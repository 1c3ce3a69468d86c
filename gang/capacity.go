package gang

// measure fills caps with how many more pods of the class each node in the
// interval takes.
func (p *Planner) measure(class ClassID, from, to int) {
	c := &p.s.Classes[class]
	width := len(p.s.Resources)
	for n := from; n < to; n++ {
		if !p.usable(c, n) {
			p.caps[n] = 0
			continue
		}
		p.caps[n] = room(c, p.free[n*width:(n+1)*width])
		if c.MaxPerNode > 0 {
			p.caps[n] = min(p.caps[n], max(0, c.MaxPerNode-int(p.used[n])))
		}
	}
}

func (p *Planner) usable(c *Class, node int) bool {
	return (c.Eligible == nil || c.Eligible[node]) &&
		(p.r.Excluded == nil || !p.r.Excluded[node]) &&
		(p.allowed == nil || p.allowed[node])
}

// room is how many pods of the class fit into what is free.
func room(c *Class, free []int64) int {
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
