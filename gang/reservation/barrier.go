package reservation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// WaitOutcome is how waiting at a barrier ended.
type WaitOutcome uint8

// The outcomes of Barrier.Wait.
const (
	// WaitCommitted: the gang starts; the member may be bound.
	WaitCommitted WaitOutcome = iota
	// WaitAborted: the reservation has ended; nobody of it may be bound.
	WaitAborted
	// WaitWithdrawn: the caller gave up before the others were there.
	WaitWithdrawn
)

func (o WaitOutcome) String() string {
	return [...]string{"committed", "aborted", "withdrawn"}[o]
}

// Wait is the end of a wait.
type Wait struct {
	Outcome WaitOutcome
	Why     string // of an abort
}

func (w Wait) String() string {
	if w.Why == "" {
		return w.Outcome.String()
	}
	return w.Outcome.String() + ": " + w.Why
}

// Barrier holds the bind calls of this replica until their gangs are committed.
// Arrivals are leases in Redis: a replica that dies takes its callers' arrivals
// with it. Those of one gang are sent together, so that a thousand members that
// arrive at once cost a few calls.
type Barrier struct {
	store  *Store
	mirror *Mirror

	mu     sync.Mutex
	groups map[string]*group // by attempt
}

// group is the members of one reservation that wait here.
type group struct {
	key     gang.Key
	attempt string
	waiting map[string]int // callers by UID
	fresh   chan struct{}  // a UID was added
	over    chan struct{}  // closed when result is set
	result  Wait
}

const (
	// arrivalLease is how long an arrival counts unless it is renewed.
	arrivalLease = 10 * time.Second
	renewEvery   = arrivalLease / 4
	// gather is how long an arrival waits for others to be sent with it.
	gather = 3 * time.Millisecond
	// withdrawWithin bounds the withdrawal of a caller that has given up.
	withdrawWithin = 2 * time.Second
)

// NewBarrier makes the barrier of a replica.
func NewBarrier(s *Store, m *Mirror) *Barrier {
	return &Barrier{store: s, mirror: m, groups: map[string]*group{}}
}

// Wait blocks until the gang is committed, its reservation has ended, or ctx is
// done. Then the member is withdrawn, unless the gang was committed meanwhile. The
// error is a fault of the store: the member is not known to be committed.
func (b *Barrier) Wait(ctx context.Context, key gang.Key, attempt, uid string) (Wait, error) {
	if w, _ := b.mirror.standing(key, attempt); w != nil {
		return *w, nil
	}
	started := time.Now()
	g := b.join(ctx, key, attempt, uid)
	defer b.leave(g, uid)
	var w Wait
	var err error
	select {
	case <-g.over:
		w = g.result
	case <-ctx.Done():
		w, err = b.withdraw(ctx, g, uid)
	}
	outcome := w.Outcome.String()
	if err != nil {
		outcome = "error"
	}
	b.store.metrics.waits.WithLabelValues(outcome).Observe(time.Since(started).Seconds())
	return w, err
}

func (b *Barrier) join(ctx context.Context, key gang.Key, attempt, uid string) *group {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.groups[attempt]
	if g == nil {
		g = &group{
			key: key, attempt: attempt, waiting: map[string]int{},
			fresh: make(chan struct{}, 1), over: make(chan struct{}),
		}
		b.groups[attempt] = g
		// The group outlives the caller that made it.
		go b.attend(context.WithoutCancel(ctx), g)
	}
	g.waiting[uid]++
	select {
	case g.fresh <- struct{}{}:
	default:
	}
	return g
}

func (b *Barrier) leave(g *group, uid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.waiting[uid]--; g.waiting[uid] == 0 {
		delete(g.waiting, uid)
	}
	if len(g.waiting) == 0 && b.groups[g.attempt] == g {
		delete(b.groups, g.attempt)
		select {
		case g.fresh <- struct{}{}: // lets attend see that nobody waits
		default:
		}
	}
}

// uids are those of the group that wait, or nil if the group was given up.
func (b *Barrier) uids(g *group) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.groups[g.attempt] != g {
		return nil
	}
	return slices.Sorted(maps.Keys(g.waiting))
}

// attend tells Redis who waits, again and again, until the gang is committed, its
// reservation has ended, or nobody waits any more.
func (b *Barrier) attend(ctx context.Context, g *group) {
	sent := map[string]bool{}
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	for {
		w, changes := b.mirror.standing(g.key, g.attempt)
		if w != nil {
			b.end(g, *w)
			return
		}
		all := false
		select {
		case <-changes:
			continue
		case <-renew.C:
			all = true
		case <-g.fresh:
			time.Sleep(gather)
		}
		uids := b.uids(g)
		if uids == nil {
			return
		}
		if !all {
			uids = slices.DeleteFunc(uids, func(uid string) bool { return sent[uid] })
		}
		if len(uids) == 0 {
			continue
		}
		word, err := b.store.arrive(ctx, g.key, g.attempt, arrivalLease, uids)
		switch {
		case err != nil:
			b.store.log.Warn("telling the barrier who waits failed; it is tried again", "gang", g.key.String(), "error", err)
			clear(sent)
		case word == "committed":
			b.end(g, Wait{Outcome: WaitCommitted})
			return
		case word == "gone":
			// The feed says why, if it comes in time.
			b.end(g, b.reason(g))
			return
		}
		if err == nil {
			for _, uid := range uids {
				sent[uid] = true
			}
		}
	}
}

// reason waits a moment for the feed to say why the reservation has ended.
func (b *Barrier) reason(g *group) Wait {
	patience := time.NewTimer(withdrawWithin / 4)
	defer patience.Stop()
	for {
		w, changes := b.mirror.standing(g.key, g.attempt)
		if w != nil && w.Outcome == WaitAborted {
			return *w
		}
		select {
		case <-changes:
		case <-patience.C:
			return Wait{Outcome: WaitAborted, Why: "its reservation has ended"}
		}
	}
}

func (b *Barrier) end(g *group, w Wait) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.groups[g.attempt] == g {
		delete(b.groups, g.attempt)
	}
	g.result = w
	close(g.over)
}

// withdraw takes a caller back that does not wait any longer. The answer is final:
// if the gang was committed first, the member is to be bound.
func (b *Barrier) withdraw(ctx context.Context, g *group, uid string) (Wait, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawWithin)
	defer cancel()
	b.mu.Lock()
	alone := g.waiting[uid] <= 1
	b.mu.Unlock()
	if !alone {
		return Wait{Outcome: WaitWithdrawn, Why: "another call waits for the same member"}, nil
	}
	word, err := b.store.withdraw(ctx, g.key, g.attempt, uid)
	switch {
	case err != nil:
		return Wait{Outcome: WaitWithdrawn}, fmt.Errorf("withdrawing from the barrier of gang %s: %w", g.key, err)
	case word == "committed":
		return Wait{Outcome: WaitCommitted}, nil
	case word == "gone":
		return b.reason(g), nil
	}
	return Wait{Outcome: WaitWithdrawn, Why: "the other members did not arrive in time"}, nil
}
