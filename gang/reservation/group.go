package reservation

import (
	"slices"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// group is the members of one reservation that wait at this replica's barrier.
// One goroutine, Barrier.attend, speaks for it to Redis: so a withdrawal is never
// overtaken by the arrival that it takes back.
type group struct {
	key     gang.Key
	attempt string
	news    chan struct{} // somebody has come or gone
	over    chan struct{} // closed when result is set
	result  Wait

	// Guarded by the barrier's lock.
	waiting map[string]int // callers by UID
	leaving []leaver

	// sent is whom Redis was told of since the last renewal. Only attend uses it.
	sent map[string]bool
}

// leaver is a member whose last caller has given up.
type leaver struct {
	uid    string
	answer chan departure
}

type departure struct {
	wait Wait
	err  error
}

// anotherWaits is told to a caller whose member stays, for another caller.
var anotherWaits = Wait{Outcome: WaitWithdrawn, Why: "another call waits for the same member"}

func newGroup(key gang.Key, attempt string) *group {
	return &group{
		key: key, attempt: attempt,
		news: make(chan struct{}, 1), over: make(chan struct{}),
		waiting: map[string]int{}, sent: map[string]bool{},
	}
}

func (g *group) poke() {
	select {
	case g.news <- struct{}{}:
	default:
	}
}

// takeLeaving empties the list of leavers. Those whose member has come back
// meanwhile have stayed.
func (g *group) takeLeaving() (left, stayed []leaver) {
	for _, l := range g.leaving {
		if g.waiting[l.uid] > 0 {
			stayed = append(stayed, l)
		} else {
			left = append(left, l)
		}
	}
	g.leaving = nil
	return left, stayed
}

// unsent are the members that wait and of whom Redis was not told lately.
func (g *group) unsent() []string {
	var uids []string
	for uid := range g.waiting {
		if !g.sent[uid] {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}
