package gang

import (
	"cmp"
	"time"
)

// Compare orders gangs by whose turn it is: running gangs that have lost members
// come first, for what they lost; then higher priority; then whoever has waited
// longest since its creation or since it last tried in vain, so that a gang that
// cannot start lets the others of its priority pass. The order is total.
func Compare(a, b *Gang, failedA, failedB time.Time) int {
	return cmp.Or(
		rank(a)-rank(b),
		cmp.Compare(b.Spec.Priority, a.Spec.Priority),
		turn(a, failedA).Compare(turn(b, failedB)),
		a.Created.Compare(b.Created),
		a.Key.Compare(b.Key),
	)
}

func rank(g *Gang) int {
	if g.Broken() {
		return 0
	}
	return 1
}

func turn(g *Gang, failed time.Time) time.Time {
	if failed.After(g.Created) {
		return failed
	}
	return g.Created
}
