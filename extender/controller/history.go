package controller

import (
	"time"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// history is what this replica remembers of the gangs it plans for. It only
// saves work and spreads retries: a replica without it decides the same, sooner.
type history struct {
	gangs map[gang.Key]*record
}

// record is the history of one gang.
type record struct {
	lastFailed time.Time // last plan that came to nothing
	failures   int       // places lost through the gang's own fault, in a row
	notBefore  time.Time // back-off
	excluded   map[string]time.Time
	broken     time.Time // first seen running below its minimum; zero: it is not

	// A refused plan need not be tried again before something it depends on
	// has changed.
	refused *gang.Unschedulable
	changes uint64 // of the gang's pods, at that plan
	freed   uint64 // of the cluster's room, at that plan
	retry   time.Time

	code        gang.Code // of the reason at present
	told        string    // text last told to the gang's pods
	toldCode    string    // its code
	toldAt      time.Time // when the condition was last written
	codeSince   time.Time // and, for missing members, since the last change of the pods
	codeChanges uint64
}

const (
	// firstBackoff doubles with each failure up to maxBackoff.
	firstBackoff = time.Second
	maxBackoff   = 2 * time.Minute
	// exclusion is how long a gang keeps away from a node that refused it.
	exclusion = 5 * time.Minute
	// staleRefusal is when a refused plan is tried again though nothing is known
	// to have changed.
	staleRefusal = 30 * time.Second
)

func (h *history) of(key gang.Key) *record {
	r := h.gangs[key]
	if r == nil {
		r = &record{excluded: map[string]time.Time{}}
		h.gangs[key] = r
	}
	return r
}

// keepOnly forgets gangs that want nothing any more.
func (h *history) keepOnly(wanted map[gang.Key]bool) {
	for key := range h.gangs {
		if !wanted[key] {
			delete(h.gangs, key)
		}
	}
}

// failed notes that the gang could not use its place: it backs off, and keeps
// away from the nodes that refused it, if some did.
func (r *record) failed(now time.Time, nodes []string) {
	delay := min(firstBackoff<<min(r.failures, 20), maxBackoff)
	r.failures++
	r.lastFailed, r.notBefore = now, now.Add(delay)
	for _, node := range nodes {
		r.excluded[node] = now.Add(exclusion)
	}
}

// excludes tells whether the gang keeps away from the node.
func (r *record) excludes(node string, now time.Time) bool {
	until, ok := r.excluded[node]
	if ok && !now.Before(until) {
		delete(r.excluded, node)
		ok = false
	}
	return ok
}

// worthwhile tells whether a plan could come out otherwise than the last one.
func (r *record) worthwhile(now time.Time, changes, freed uint64) bool {
	if now.Before(r.notBefore) {
		return false
	}
	return r.refused == nil || r.changes != changes || r.freed != freed || !now.Before(r.retry)
}

func (r *record) refuse(now time.Time, why *gang.Unschedulable, changes, freed uint64) {
	r.refused, r.changes, r.freed, r.retry = why, changes, freed, now.Add(staleRefusal)
	r.lastFailed = now
}
