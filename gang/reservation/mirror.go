package reservation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// Held is a pod's place.
type Held struct {
	Gang    gang.Key
	Attempt string
	Node    string
	Phase   Phase
	// Level and Domain are the gang's, GPUs the pod's own.
	Level, Domain string
	GPUs          *GPUs
}

// State is the store at a revision.
type State struct {
	// Synced is false while the mirror is behind, and then the rest is of no use.
	Synced   bool
	Revision Revision
	// AsOf is the resource version of pods that a planner must have seen.
	AsOf uint64
	// Reservations by gang; they must not be changed.
	Reservations []*Reservation
}

// Mirror is a copy of the store in memory, kept current by the feed of changes.
// It answers without a round trip. Its methods are safe for concurrent use.
type Mirror struct {
	store   *Store
	changed chan struct{}

	mu sync.RWMutex
	content
	loaded    bool              // once, at least
	following bool              // since it was loaded last, the feed has gone on
	contact   time.Time         // last answer from Redis
	ended     map[string]string // by attempt: why it was released; of late
	changes   chan struct{}     // closed and replaced at each change
}

const (
	// blockFor is how long a read of the feed waits. It bounds how old the news
	// that Redis answers can be, and how late an emptied store is noticed.
	blockFor = time.Second
	// downAfter is how long Redis may be silent before the mirror is not believed.
	downAfter  = 5 * time.Second
	retryAfter = 200 * time.Millisecond
	readAtOnce = 1000
	keptEnded  = 1000
)

// NewMirror makes a mirror; Run keeps it current.
func NewMirror(s *Store) *Mirror {
	m := &Mirror{
		store: s, content: newContent(), ended: map[string]string{},
		changed: make(chan struct{}, 1), changes: make(chan struct{}),
	}
	s.metrics.observe(m)
	return m
}

// Run follows the store until ctx ends.
func (m *Mirror) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := m.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		m.store.metrics.reloads.Inc()
		if !errors.Is(err, errGap) {
			m.store.log.Warn("following the store failed; it is read anew", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// follow reads everything and then the feed, until that does not go on.
func (m *Mirror) follow(ctx context.Context) error {
	defer m.lose()
	if err := m.load(ctx); err != nil {
		return err
	}
	verified, ahead := time.Now(), false
	for {
		n, err := m.read(ctx, blockFor)
		switch {
		case err != nil:
			return err
		case n == 0 && ahead:
			// The store was ahead already before this read, which would have
			// brought the changes if the feed had them.
			return errGap
		case n > 0 && time.Since(verified) < blockFor:
			ahead = false
			continue
		}
		// There is nothing new, or nothing at all any more; or the entries that
		// came may be another store's.
		if ahead, err = m.verify(ctx); err != nil {
			return err
		}
		verified = time.Now()
	}
}

func (m *Mirror) lose() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.following = false
}

// read takes in what the feed has, waiting for it if that is nothing. It gives
// the number of entries.
func (m *Mirror) read(ctx context.Context, block time.Duration) (int, error) {
	m.mu.RLock()
	last := m.last
	m.mu.RUnlock()
	streams, err := m.store.client.XRead(ctx, &redis.XReadArgs{
		Streams: []string{m.store.keys.feed(), last}, Count: readAtOnce, Block: block,
	}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("redis: reading the feed: %w", err)
	}
	for _, message := range streams[0].Messages {
		if err := m.take(message); err != nil {
			return 0, err
		}
	}
	return len(streams[0].Messages), nil
}

func (m *Mirror) take(message redis.XMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	attempt, why, err := m.apply(message)
	if err != nil {
		return err
	}
	if attempt != "" {
		m.remember(attempt, why)
	}
	m.contact = time.Now()
	m.wake()
	return nil
}

// verify asks whether the store is still the one that is mirrored, and whether it
// is ahead of the mirror.
func (m *Mirror) verify(ctx context.Context) (ahead bool, err error) {
	at, err := m.store.open(ctx)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contact = time.Now()
	if at.Incarnation != m.revision.Incarnation || at.Rev < m.revision.Rev {
		return false, errGap
	}
	return at.Rev > m.revision.Rev, nil
}

// load reads everything. The mirror stays as it is until all of it was read.
func (m *Mirror) load(ctx context.Context) error {
	if err := m.mend(ctx); err != nil {
		return err
	}
	k := m.store.keys
	list, err := m.store.run(ctx, snapshotScript, []string{k.meta(), k.feed(), k.gangs(), k.verdicts()}).Slice()
	if err != nil {
		return fmt.Errorf("redis: snapshot: %w", err)
	}
	fresh, err := decodeSnapshot(list)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh.keepTimes(&m.content)
	m.content = fresh
	m.loaded, m.following, m.contact = true, true, time.Now()
	m.wake()
	return nil
}

// mend makes the store if Redis was emptied, and gives it a new incarnation if it
// has lost writes: if it is behind what was seen of it before.
func (m *Mirror) mend(ctx context.Context) error {
	m.mu.RLock()
	seen := []Revision{m.revision, m.store.lastWrite()}
	m.mu.RUnlock()
	at, err := m.store.open(ctx)
	if err != nil {
		return err
	}
	for _, before := range seen {
		if before.Incarnation == at.Incarnation && before.Rev > at.Rev {
			m.store.log.Warn("the store has lost writes; plans made on them are fenced off", "seen", before.Rev, "found", at.Rev)
			return m.store.fence(ctx, at.Incarnation)
		}
	}
	return nil
}

// remember keeps why a reservation was released, for those who wait at its barrier.
func (m *Mirror) remember(attempt, why string) {
	if len(m.ended) >= keptEnded {
		clear(m.ended)
	}
	m.ended[attempt] = why
}

// wake tells those who wait for any change. The lock is held.
func (m *Mirror) wake() {
	close(m.changes)
	m.changes = make(chan struct{})
	m.announce()
}

func (m *Mirror) announce() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}
