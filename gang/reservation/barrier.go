package reservation

import (
	"context"
	"fmt"
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
	renew  time.Duration

	mu     sync.Mutex
	groups map[string]*group // by attempt
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
	return &Barrier{store: s, mirror: m, renew: renewEvery, groups: map[string]*group{}}
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
	var w Wait
	var err error
	select {
	case <-g.over:
		w = g.result
	case <-ctx.Done():
		w, err = b.leave(g, uid)
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
		g = newGroup(key, attempt)
		b.groups[attempt] = g
		// The group outlives the caller that made it.
		go b.attend(context.WithoutCancel(ctx), g)
	}
	g.waiting[uid]++
	g.poke()
	return g
}

// leave takes a caller back that does not wait any longer. The answer is final: if
// the gang was committed first, the member is to be bound.
func (b *Barrier) leave(g *group, uid string) (Wait, error) {
	b.mu.Lock()
	if g.waiting[uid]--; g.waiting[uid] > 0 {
		b.mu.Unlock()
		return anotherWaits, nil
	}
	delete(g.waiting, uid)
	l := leaver{uid, make(chan departure, 1)}
	g.leaving = append(g.leaving, l)
	g.poke()
	b.mu.Unlock()
	patience := time.NewTimer(withdrawWithin)
	defer patience.Stop()
	select {
	case d := <-l.answer:
		return d.wait, d.err
	case <-g.over:
		return g.result, nil
	case <-patience.C:
	}
	if w, _ := b.mirror.standing(g.key, g.attempt); w != nil {
		return *w, nil
	}
	return Wait{Outcome: WaitWithdrawn}, fmt.Errorf("withdrawing from the barrier of gang %s: no answer in %s", g.key, withdrawWithin)
}

// attend tells Redis who waits and who does not any more, again and again, until
// the gang is committed, its reservation has ended, or nobody waits.
func (b *Barrier) attend(ctx context.Context, g *group) {
	renew := time.NewTicker(b.renew)
	defer renew.Stop()
	for {
		w, changes := b.mirror.standing(g.key, g.attempt)
		if w != nil {
			b.end(g, *w)
			return
		}
		select {
		case <-changes:
			continue
		case <-renew.C:
			clear(g.sent)
		case <-g.news:
			time.Sleep(gather)
		}
		word := b.withdraw(ctx, g)
		if word == "" {
			word = b.arrive(ctx, g)
		}
		switch word {
		case "committed":
			b.end(g, Wait{Outcome: WaitCommitted})
			return
		case "gone":
			// The feed says why, if it comes in time.
			b.end(g, b.reason(g))
			return
		}
		if b.closed(g) {
			return
		}
	}
}

// withdraw tells Redis who has left. It gives the word that ends the group, or "".
func (b *Barrier) withdraw(ctx context.Context, g *group) string {
	b.mu.Lock()
	left, stayed := g.takeLeaving()
	b.mu.Unlock()
	for _, l := range stayed {
		l.answer <- departure{wait: anotherWaits}
	}
	if len(left) == 0 {
		return ""
	}
	uids := make([]string, len(left))
	for i, l := range left {
		uids[i] = l.uid
		delete(g.sent, l.uid)
	}
	word, err := b.store.withdraw(ctx, g.key, g.attempt, uids...)
	if err == nil && word != "withdrawn" {
		return word // the end of the group answers all
	}
	d := departure{wait: Wait{Outcome: WaitWithdrawn, Why: "the other members did not arrive in time"}}
	if err != nil {
		d = departure{Wait{Outcome: WaitWithdrawn}, fmt.Errorf("withdrawing from the barrier of gang %s: %w", g.key, err)}
	}
	for _, l := range left {
		l.answer <- d
	}
	return ""
}

// arrive tells Redis who waits, of those that it was not told of lately. It gives
// the word that ends the group, or "".
func (b *Barrier) arrive(ctx context.Context, g *group) string {
	b.mu.Lock()
	uids := g.unsent()
	b.mu.Unlock()
	if len(uids) == 0 {
		return ""
	}
	word, err := b.store.arrive(ctx, g.key, g.attempt, arrivalLease, uids)
	switch {
	case err != nil:
		b.store.log.Warn("telling the barrier who waits failed; it is tried again", "gang", g.key.String(), "error", err)
		return ""
	case word != "waiting":
		return word
	}
	for _, uid := range uids {
		g.sent[uid] = true
	}
	return ""
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

// end answers all who are in the group.
func (b *Barrier) end(g *group, w Wait) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.groups, g.attempt)
	g.result = w
	close(g.over)
}

// closed gives up a group that nobody is in.
func (b *Barrier) closed(g *group) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(g.waiting)+len(g.leaving) > 0 {
		return false
	}
	delete(b.groups, g.attempt)
	return true
}
