package controller

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// action is what becomes of a reservation.
type action uint8

const (
	keep   action = iota
	abort         // give the room back and plan anew
	expire        // as abort, if the store's clock agrees that its time is up
	finish        // all its pods are bound: it has served its purpose
	drop          // its pods are gone
)

// judgement says what becomes of a reservation, and why.
type judgement struct {
	action action
	why    string
	// exclude are nodes to which the gang is not sent again for a while.
	exclude []string
	// blame: the gang itself could not use its place, so it backs off. Otherwise
	// the place was lost to it, and it may try again at once.
	blame bool
}

// evidence is what a reservation is judged by.
type evidence struct {
	now   time.Time
	pods  func(uid string) *cluster.Pod // nil: gone
	alive bool                          // the gang has pods that are pending or bound
	// unusable says why the pod may not go to the node any more, or "".
	unusable func(uid, node string) string
	// overcommitted nodes have less room than is promised on them.
	overcommitted map[string]bool
	// required is how many members must start together now; missing ones included.
	required int
	// toCome is how many pods to come need room kept for them now.
	toCome int
	// placedAt is when the pod was sent to its node, with the message that its
	// condition PodScheduled showed then; zero if it was not yet.
	placedAt func(uid string) (time.Time, string)
	// arrived tells whether the pod waits at the barrier: whatever its condition
	// shows, kube-scheduler has accepted it.
	arrived func(uid string) bool
}

// A refusal counts once it has stood for a while: kube-scheduler may see freed
// room a moment later than we do, and tries again by itself then. A message from
// before the pod was placed says nothing of its new place, unless it stays.
const (
	freshRefusalGrace = 3 * time.Second
	staleRefusalGrace = 30 * time.Second
)

// judge decides on a reservation. Before it is committed, anything that keeps a
// required member from its place ends it, for all members at once; after that
// nothing does, but its purpose being served.
func judge(r *reservation.Reservation, e evidence) judgement {
	if !e.alive {
		return judgement{action: drop, why: "the gang is gone"}
	}
	if r.Phase == reservation.Committed {
		return judgeCommitted(r, e)
	}
	required := 0
	for i := range r.Members {
		m := &r.Members[i]
		if m.Required {
			required++
		}
		if j := judgeMember(m, e); j.action != keep {
			return j
		}
	}
	if j := judgeRefusals(r, e); j.action != keep {
		return j
	}
	switch {
	case required < e.required:
		return judgement{action: abort, why: fmt.Sprintf("%d members must start together now, room is reserved for %d", e.required, required)}
	case !r.Deadline.After(e.now):
		return judgement{action: expire, why: "its start timeout has passed", blame: true}
	}
	return judgement{}
}

func judgeMember(m *reservation.Member, e evidence) judgement {
	if e.overcommitted[m.Node] {
		return judgement{action: abort, why: fmt.Sprintf("node %s has less room than was planned", m.Node)}
	}
	if m.UID == "" {
		return judgement{}
	}
	p := e.pods(m.UID)
	if p == nil || p.Phase == gang.Gone {
		return judgement{action: abort, why: fmt.Sprintf("member %s is gone", m.Name)}
	}
	if p.Phase != gang.Pending {
		return judgement{}
	}
	if why := e.unusable(m.UID, m.Node); why != "" {
		return judgement{action: abort, why: fmt.Sprintf("node %s is no longer usable: %s", m.Node, why)}
	}
	return judgement{}
}

// judgeRefusals ends a reservation of which kube-scheduler refuses members where
// they were planned. The gang keeps away from all the nodes that do, so that it
// learns from one attempt what there is to learn.
func judgeRefusals(r *reservation.Reservation, e evidence) judgement {
	var out judgement
	for i := range r.Members {
		m := &r.Members[i]
		if m.UID == "" {
			continue
		}
		p := e.pods(m.UID)
		if p == nil || p.Phase != gang.Pending || !refused(p, e) {
			continue
		}
		if out.action == keep {
			out = judgement{action: abort, blame: true, why: fmt.Sprintf("kube-scheduler refused member %s on node %s: %s", m.Name, m.Node, p.Refused)}
		}
		if !slices.Contains(out.exclude, m.Node) {
			out.exclude = append(out.exclude, m.Node)
		}
	}
	return out
}

func refused(p *cluster.Pod, e evidence) bool {
	if p.Gated || p.Refused == "" {
		return false
	}
	at, before := e.placedAt(string(p.UID))
	grace := freshRefusalGrace
	if p.Refused == before {
		grace = staleRefusalGrace
	}
	return !at.IsZero() && e.now.Sub(at) >= grace && !e.arrived(string(p.UID))
}

// judgeCommitted keeps a committed reservation until its members are bound, and
// for pods to come as long as the gang wants room kept for them.
func judgeCommitted(r *reservation.Reservation, e evidence) judgement {
	for _, m := range r.Members {
		if m.UID == "" {
			continue
		}
		p := e.pods(m.UID)
		if p == nil || p.Phase != gang.Pending {
			continue
		}
		// A surplus member that cannot go where it was planned must not hold
		// its room for ever.
		if m.Required || (r.Deadline.After(e.now) && e.unusable(m.UID, m.Node) == "") {
			return judgement{}
		}
	}
	if toCome(r) > 0 && e.toCome > 0 {
		return judgement{}
	}
	return judgement{action: finish, why: "all members are bound"}
}
