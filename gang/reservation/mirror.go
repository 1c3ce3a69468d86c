package reservation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
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

	mu       sync.RWMutex
	loaded   bool
	contact  time.Time // last answer from Redis
	revision Revision
	asOf     uint64
	last     string // id of the feed's last entry seen
	gangs    map[string]*entry
	seats    map[string]Held // by UID
	verdicts map[string]Verdict
	ended    map[string]string // by attempt: why it was released; of late
	changes  chan struct{}     // closed and replaced at each change
}

type entry struct {
	*Reservation
	committedAt time.Time // by the local clock, when this mirror saw it
}

const (
	// blockFor is how long a read of the feed waits. It bounds how old the news
	// that Redis answers can be, and how late an empty store is noticed.
	blockFor = time.Second
	// downAfter is how long Redis may be silent before the mirror is not believed.
	downAfter  = 5 * time.Second
	retryAfter = 200 * time.Millisecond
	readAtOnce = 1000
	keptEnded  = 1000
)

// NewMirror makes a mirror; Run keeps it current.
func NewMirror(s *Store) *Mirror {
	m := &Mirror{store: s, changed: make(chan struct{}, 1), changes: make(chan struct{})}
	m.clear()
	s.metrics.observe(m)
	return m
}

func (m *Mirror) clear() {
	m.gangs, m.seats = map[string]*entry{}, map[string]Held{}
	m.verdicts, m.ended = map[string]Verdict{}, map[string]string{}
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

// errGap means that the feed does not go on where the mirror is.
var errGap = errors.New("the feed has a gap")

func (m *Mirror) follow(ctx context.Context) error {
	if err := m.load(ctx); err != nil {
		return err
	}
	for {
		m.mu.RLock()
		last := m.last
		m.mu.RUnlock()
		streams, err := m.store.client.XRead(ctx, &redis.XReadArgs{
			Streams: []string{m.store.keys.feed(), last}, Count: readAtOnce, Block: blockFor,
		}).Result()
		switch {
		case errors.Is(err, redis.Nil):
			// Nothing new, or nothing at all any more.
			if err := m.verify(ctx); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("redis: reading the feed: %w", err)
		}
		for _, message := range streams[0].Messages {
			if err := m.apply(message); err != nil {
				return err
			}
		}
		m.announce()
	}
}

// verify asks whether the store is still the one that is mirrored.
func (m *Mirror) verify(ctx context.Context) error {
	at, err := m.store.open(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contact = time.Now()
	if at != m.revision {
		// A change may have come just now: then the feed has it.
		if at.Incarnation != m.revision.Incarnation || at.Rev < m.revision.Rev {
			return errGap
		}
	}
	return nil
}

// load reads everything.
func (m *Mirror) load(ctx context.Context) error {
	if _, err := m.store.open(ctx); err != nil {
		return err
	}
	k := m.store.keys
	list, err := m.store.run(ctx, snapshotScript, []string{k.meta(), k.feed(), k.gangs(), k.verdicts()}).Slice()
	if err != nil {
		return fmt.Errorf("redis: snapshot: %w", err)
	}
	if len(list) != 6 {
		return fmt.Errorf("redis: snapshot: %d parts", len(list))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ended := m.ended
	m.clear()
	m.ended = ended
	m.revision.Incarnation, _ = list[0].(string)
	for i, to := range []*uint64{&m.revision.Rev, &m.asOf} {
		text, _ := list[i+1].(string)
		if *to, err = strconv.ParseUint(text, 10, 64); err != nil {
			return fmt.Errorf("redis: snapshot: %w", err)
		}
	}
	m.last, _ = list[3].(string)
	err = pairs(list[4], func(gang, record string) error {
		r, err := decode(gang, record)
		if err == nil {
			m.put(gang, r)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := pairs(list[5], m.setVerdict); err != nil {
		return err
	}
	m.loaded, m.contact = true, time.Now()
	m.wake()
	return nil
}

func pairs(list any, take func(key, value string) error) error {
	words, _ := list.([]any)
	for i := 0; i+1 < len(words); i += 2 {
		key, _ := words[i].(string)
		value, _ := words[i+1].(string)
		if err := take(key, value); err != nil {
			return err
		}
	}
	return nil
}

// apply takes in one entry of the feed.
func (m *Mirror) apply(message redis.XMessage) error {
	get := func(name string) string {
		text, _ := message.Values[name].(string)
		return text
	}
	rev, err := strconv.ParseUint(get("rev"), 10, 64)
	if err != nil {
		return fmt.Errorf("redis: feed: entry %s: %w", message.ID, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if rev != m.revision.Rev+1 {
		return errGap
	}
	name, attempt := get("gang"), get("attempt")
	switch op := get("op"); op {
	case "reserve":
		r, err := decode(name, get("record"))
		if err != nil {
			return err
		}
		m.put(name, r)
	case "commit":
		if old := m.gangs[name]; old != nil && old.Attempt == attempt {
			r := *old.Reservation
			r.Phase = Committed
			m.put(name, &r)
		}
	case "release":
		m.remove(name)
		m.remember(attempt, get("why"))
		if asOf, err := strconv.ParseUint(get("asof"), 10, 64); err == nil {
			m.asOf = max(m.asOf, asOf)
		}
	case "verdict":
		if err := m.setVerdict(name, get("verdict")); err != nil {
			return err
		}
	default:
		return fmt.Errorf("redis: feed: entry %s: unknown change %q", message.ID, op)
	}
	m.revision.Rev, m.last, m.contact = rev, message.ID, time.Now()
	m.wake()
	return nil
}

func (m *Mirror) setVerdict(name, text string) error {
	if text == "" {
		delete(m.verdicts, name)
		return nil
	}
	var v Verdict
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return fmt.Errorf("decoding the verdict on gang %s: %w", name, err)
	}
	m.verdicts[name] = v
	return nil
}

func (m *Mirror) put(name string, r *Reservation) {
	m.remove(name)
	e := &entry{Reservation: r}
	if r.Phase == Committed {
		e.committedAt = time.Now()
	}
	m.gangs[name] = e
	for _, member := range r.Members {
		if member.UID != "" {
			m.seats[member.UID] = Held{r.Gang, r.Attempt, member.Node, r.Phase}
		}
	}
}

func (m *Mirror) remove(name string) {
	old := m.gangs[name]
	if old == nil {
		return
	}
	delete(m.gangs, name)
	for _, member := range old.Members {
		if m.seats[member.UID].Attempt == old.Attempt {
			delete(m.seats, member.UID)
		}
	}
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
