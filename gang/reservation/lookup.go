package reservation

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// Changed receives after changes; several in quick succession arrive as one. It
// serves one reader.
func (m *Mirror) Changed() <-chan struct{} { return m.changed }

// Seat gives the place that is reserved for the pod.
func (m *Mirror) Seat(uid string) (Held, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	held, ok := m.seats[uid]
	return held, ok
}

// AwaitSeat is Seat for a pod that is known to have a place: it gives the feed a
// moment to bring it.
func (m *Mirror) AwaitSeat(ctx context.Context, uid string) (Held, bool) {
	for {
		m.mu.RLock()
		held, ok := m.seats[uid]
		changes := m.changes
		m.mu.RUnlock()
		if ok {
			return held, true
		}
		select {
		case <-ctx.Done():
			return Held{}, false
		case <-changes:
		}
	}
}

// State gives everything, for a planner.
func (m *Mirror) State() State {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := State{Synced: m.following && m.up() && !m.store.behind(m.revision), Revision: m.revision, AsOf: m.asOf}
	for _, e := range m.gangs {
		out.Reservations = append(out.Reservations, e.Reservation)
	}
	slices.SortFunc(out.Reservations, func(a, b *Reservation) int { return a.Gang.Compare(b.Gang) })
	return out
}

// Reservation gives the gang's reservation.
func (m *Mirror) Reservation(key gang.Key) (*Reservation, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e := m.gangs[field(key)]
	if e == nil {
		return nil, false
	}
	return e.Reservation, true
}

// CommittedAt is when this mirror saw the gang committed, by the local clock; zero
// if it is not.
func (m *Mirror) CommittedAt(key gang.Key) time.Time {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if e := m.gangs[field(key)]; e != nil {
		return e.committedAt
	}
	return time.Time{}
}

// Verdict gives why the gang waits, if that is noted.
func (m *Mirror) Verdict(key gang.Key) (Verdict, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	v, ok := m.verdicts[field(key)]
	return v, ok
}

// VerdictKeys lists the gangs with a verdict.
func (m *Mirror) VerdictKeys() []gang.Key {
	m.mu.RLock()
	names := slices.Collect(maps.Keys(m.verdicts))
	m.mu.RUnlock()
	var out []gang.Key
	for _, name := range names {
		if key, err := parseField(name); err == nil {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, gang.Key.Compare)
	return out
}

// Up tells whether the mirror can be believed: it was loaded, and Redis has
// answered of late.
func (m *Mirror) Up() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.up()
}

func (m *Mirror) up() bool { return m.loaded && time.Since(m.contact) < downAfter }

// standing tells how the attempt stands: what to answer at its barrier, if
// anything yet, and a channel that closes at the next change.
func (m *Mirror) standing(key gang.Key, attempt string) (*Wait, <-chan struct{}) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if e := m.gangs[field(key)]; e != nil && e.Attempt == attempt {
		if e.Phase == Committed {
			return &Wait{Outcome: WaitCommitted}, m.changes
		}
		return nil, m.changes
	}
	if why, ok := m.ended[attempt]; ok {
		return &Wait{Outcome: WaitAborted, Why: cmp.Or(why, "its reservation has ended")}, m.changes
	}
	return nil, m.changes
}
