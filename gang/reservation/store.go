package reservation

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// schema is the version of what is kept in Redis.
const schema = 1

var (
	//go:embed lua/lib.lua
	lib string
	//go:embed lua/open.lua
	openLua string
	//go:embed lua/fence.lua
	fenceLua string
	//go:embed lua/reserve.lua
	reserveLua string
	//go:embed lua/arrive.lua
	arriveLua string
	//go:embed lua/withdraw.lua
	withdrawLua string
	//go:embed lua/arrived.lua
	arrivedLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/snapshot.lua
	snapshotLua string
	//go:embed lua/verdict.lua
	verdictLua string
	//go:embed lua/lease.lua
	leaseLua string
	//go:embed lua/resign.lua
	resignLua string
)

// script is one atomic operation.
type script struct {
	name string // of the operation, for metrics and errors
	*redis.Script
}

func newScript(name, text string) script { return script{name, redis.NewScript(lib + text)} }

var (
	openScript     = newScript("open", openLua)
	fenceScript    = newScript("fence", fenceLua)
	reserveScript  = newScript("reserve", reserveLua)
	arriveScript   = newScript("arrive", arriveLua)
	withdrawScript = newScript("withdraw", withdrawLua)
	arrivedScript  = newScript("arrived", arrivedLua)
	releaseScript  = newScript("release", releaseLua)
	snapshotScript = newScript("snapshot", snapshotLua)
	verdictScript  = newScript("verdict", verdictLua)
	leaseScript    = newScript("lease", leaseLua)
	resignScript   = newScript("resign", resignLua)
)

// Options of a Store.
type Options struct {
	// Cluster names the part of Redis that is used.
	Cluster    string
	Client     redis.UniversalClient
	Registerer prometheus.Registerer
	Log        *slog.Logger
}

// Store makes the changes. Its methods are safe for concurrent use, each is one
// round trip, and each may be repeated: what was done already is not done again.
type Store struct {
	client  redis.UniversalClient
	keys    keys
	log     *slog.Logger
	metrics *metrics

	mu sync.Mutex
	// wrote is the revision of this store's last change: a mirror that has not
	// come as far would plan against its own past.
	wrote Revision
	// fenced is the incarnation on which a plan was fenced off last: there is
	// nothing to plan on it any more.
	fenced string
}

// ErrFenced is the error of a change to a store that was emptied and is not made
// anew yet. The mirror does that within moments.
var ErrFenced = errors.New("the store was emptied")

// New makes a Store. It does not call Redis yet.
func New(o Options) *Store {
	s := &Store{client: o.Client, keys: newKeys(o.Cluster), log: o.Log, metrics: newMetrics()}
	s.metrics.register(o.Registerer)
	return s
}

// run calls a script, and measures it.
func (s *Store) run(ctx context.Context, sc script, keys []string, args ...any) *redis.Cmd {
	started := time.Now()
	cmd := sc.Run(ctx, s.client, keys, args...)
	result := "ok"
	if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
		result = "error"
		if ctx.Err() != nil {
			result = "cancelled"
		}
	}
	s.metrics.calls.WithLabelValues(sc.name, result).Observe(time.Since(started).Seconds())
	return cmd
}

// reply calls a script that answers a list of which the first word says what
// became of it.
func (s *Store) reply(ctx context.Context, sc script, keys []string, args ...any) (string, []any, error) {
	list, err := s.run(ctx, sc, keys, args...).Slice()
	if err != nil {
		return "", nil, fmt.Errorf("redis: %s: %w", sc.name, err)
	}
	if len(list) == 0 {
		return "", nil, fmt.Errorf("redis: %s: empty answer", sc.name)
	}
	word, _ := list[0].(string)
	return word, list[1:], nil
}

// open makes the store in Redis if there is none, and refuses one of a newer version.
func (s *Store) open(ctx context.Context) (Revision, error) {
	list, err := s.run(ctx, openScript, []string{s.keys.meta()}, schema, uuid.NewString()).StringSlice()
	if err != nil {
		return Revision{}, fmt.Errorf("redis: open: %w", err)
	}
	if len(list) != 3 {
		return Revision{}, fmt.Errorf("redis: open: %s is not ours: %v", s.keys.meta(), list)
	}
	if found, err := strconv.Atoi(list[2]); err != nil || found != schema {
		return Revision{}, fmt.Errorf("the store in Redis has schema %s, this version of Lockstep reads %d", list[2], schema)
	}
	rev, err := strconv.ParseUint(list[1], 10, 64)
	if err != nil {
		return Revision{}, fmt.Errorf("redis: open: %w", err)
	}
	return Revision{list[0], rev}, nil
}

// fence makes void what was planned on the incarnation.
func (s *Store) fence(ctx context.Context, incarnation string) error {
	if err := s.run(ctx, fenceScript, []string{s.keys.meta()}, incarnation, uuid.NewString()).Err(); err != nil {
		return fmt.Errorf("redis: fencing off plans on lost writes: %w", err)
	}
	return nil
}

// note remembers a change that this store has made.
func (s *Store) note(at Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrote.Incarnation != at.Incarnation || at.Rev > s.wrote.Rev {
		s.wrote = at
	}
}

// noteAnswer is note for the answer {rev, incarnation}.
func (s *Store) noteAnswer(rest []any) {
	if len(rest) == 2 {
		incarnation, _ := rest[1].(string)
		s.note(Revision{incarnation, number(rest, 0)})
	}
}

func (s *Store) lastWrite() Revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote
}

// behind tells whether the revision lacks a change that this store has made, or
// is of a store that is no more.
func (s *Store) behind(at Revision) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fenced == at.Incarnation || (s.wrote.Incarnation == at.Incarnation && s.wrote.Rev > at.Rev)
}

func (s *Store) all(key gang.Key) []string {
	k := s.keys
	return []string{k.meta(), k.feed(), k.gangs(), k.state(key), k.need(key), k.here(key)}
}

// Reserve stores the reservation if no room was taken since the revision, and the
// gang's present reservation is the attempt that it replaces ("": it has none).
// The room is held for the duration. Without required members the reservation is
// committed at once.
func (s *Store) Reserve(ctx context.Context, at Revision, r Reservation, hold time.Duration, replaces string) (Outcome, error) {
	body, err := r.encode()
	if err != nil {
		return Outcome{}, err
	}
	args := []any{at.Incarnation, at.Rev, field(r.Gang), r.Attempt, replaces, r.Need, hold.Milliseconds(), body}
	for _, m := range r.Members {
		if m.Required {
			args = append(args, m.UID)
		}
	}
	word, rest, err := s.reply(ctx, reserveScript, s.all(r.Gang), args...)
	if err != nil {
		return Outcome{}, fmt.Errorf("reserving room for gang %s: %w", r.Gang, err)
	}
	switch word {
	case "fenced":
		s.metrics.conflicts.WithLabelValues("fenced").Inc()
		s.mu.Lock()
		s.fenced = at.Incarnation
		s.mu.Unlock()
		return Outcome{Result: ResultFenced}, nil
	case "conflict":
		s.metrics.conflicts.WithLabelValues("outrun").Inc()
		return Outcome{Result: ResultConflict, Revision: Revision{at.Incarnation, number(rest, 0)}}, nil
	}
	if len(rest) != 2 {
		return Outcome{}, fmt.Errorf("redis: reserve: %d parts", len(rest))
	}
	reserved := Revision{at.Incarnation, number(rest, 0)}
	s.note(reserved)
	record, _ := rest[1].(string)
	stored, err := decode(field(r.Gang), record)
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Result: ResultReserved, Revision: reserved, Reservation: stored}, nil
}

func number(list []any, i int) uint64 {
	if i >= len(list) {
		return 0
	}
	n, _ := list[i].(int64)
	return uint64(max(n, 0))
}

// Abort gives a reservation's room back, unless it is committed. Those who wait
// at its barrier are told why. It reports whether it was there and has ended.
func (s *Store) Abort(ctx context.Context, key gang.Key, attempt, why string) (bool, error) {
	return s.release(ctx, key, attempt, "abort", why, 0)
}

// Expire is Abort, if the reservation's time is up by Redis's clock.
func (s *Store) Expire(ctx context.Context, key gang.Key, attempt, why string) (bool, error) {
	return s.release(ctx, key, attempt, "expire", why, 0)
}

// Finish removes a committed reservation whose members were seen bound at the
// resource version: whoever has not seen the pods that far must not plan, as he
// would take their room for free.
func (s *Store) Finish(ctx context.Context, key gang.Key, attempt string, asOf uint64) (bool, error) {
	return s.release(ctx, key, attempt, "finish", "", asOf)
}

// Drop removes the reservation of a gang whose pods were seen gone at the resource
// version.
func (s *Store) Drop(ctx context.Context, key gang.Key, attempt string, asOf uint64) (bool, error) {
	return s.release(ctx, key, attempt, "drop", "the gang is gone", asOf)
}

func (s *Store) release(ctx context.Context, key gang.Key, attempt, how, why string, asOf uint64) (bool, error) {
	word, rest, err := s.reply(ctx, releaseScript, s.all(key), field(key), attempt, how, why, asOf)
	if err != nil {
		return false, fmt.Errorf("ending the reservation of gang %s (%s): %w", key, how, err)
	}
	if word != "ok" {
		return false, nil
	}
	s.noteAnswer(rest)
	s.metrics.ended.WithLabelValues(how).Inc()
	return true, nil
}

// Arrived gives the UIDs of the required members that wait at the barrier.
func (s *Store) Arrived(ctx context.Context, key gang.Key, attempt string) ([]string, error) {
	uids, err := s.run(ctx, arrivedScript, []string{s.keys.state(key), s.keys.here(key)}, attempt).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("asking who waits at the barrier of gang %s: %w", key, err)
	}
	return uids, nil
}

// arrive tells the barrier that the members are there, for the lease.
func (s *Store) arrive(ctx context.Context, key gang.Key, attempt string, lease time.Duration, uids []string) (string, error) {
	args := []any{field(key), attempt, lease.Milliseconds()}
	for _, uid := range uids {
		args = append(args, uid)
	}
	word, _, err := s.reply(ctx, arriveScript, s.all(key), args...)
	return word, err
}

// withdraw takes arrivals back, unless the gang is committed.
func (s *Store) withdraw(ctx context.Context, key gang.Key, attempt string, uids ...string) (string, error) {
	args := []any{attempt}
	for _, uid := range uids {
		args = append(args, uid)
	}
	word, _, err := s.reply(ctx, withdrawScript, []string{s.keys.state(key), s.keys.here(key)}, args...)
	return word, err
}

// Verdict is why a gang waits, for every replica to answer alike.
type Verdict struct {
	Code string `json:"c"`
	Text string `json:"t"`
}

// SetVerdict notes why the gang waits.
func (s *Store) SetVerdict(ctx context.Context, key gang.Key, v Verdict) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the verdict on gang %s: %w", key, err)
	}
	return s.setVerdict(ctx, key, string(text))
}

// ClearVerdict notes that the gang does not wait any more.
func (s *Store) ClearVerdict(ctx context.Context, key gang.Key) error {
	return s.setVerdict(ctx, key, "")
}

func (s *Store) setVerdict(ctx context.Context, key gang.Key, text string) error {
	word, rest, err := s.reply(ctx, verdictScript, []string{s.keys.meta(), s.keys.feed(), s.keys.verdicts()}, field(key), text)
	if word == "fenced" {
		err = ErrFenced
	}
	if err != nil {
		return fmt.Errorf("noting the verdict on gang %s: %w", key, err)
	}
	s.noteAnswer(rest)
	return nil
}

// Lease takes or renews a lease for the holder, and tells whether it has it.
func (s *Store) Lease(ctx context.Context, name, holder string, d time.Duration) (bool, error) {
	n, err := s.run(ctx, leaseScript, []string{s.keys.lease(name)}, holder, d.Milliseconds()).Int()
	if err != nil {
		return false, fmt.Errorf("taking the lease %s: %w", name, err)
	}
	return n == 1, nil
}

// Resign gives a lease back if the holder has it.
func (s *Store) Resign(ctx context.Context, name, holder string) error {
	if err := s.run(ctx, resignScript, []string{s.keys.lease(name)}, holder).Err(); err != nil {
		return fmt.Errorf("giving back the lease %s: %w", name, err)
	}
	return nil
}

// Leftovers names the keys of gangs, reservations and verdicts in Redis, for tests:
// an empty cluster has none.
func (s *Store) Leftovers(ctx context.Context) ([]string, error) {
	var out []string
	iter := s.client.Scan(ctx, 0, escapeGlob(s.keys.prefix)+"*", 1000).Iterator()
	for iter.Next(ctx) {
		rest := strings.TrimPrefix(iter.Val(), s.keys.prefix)
		if rest != "meta" && rest != "feed" && !strings.HasPrefix(rest, "lease:") {
			out = append(out, iter.Val())
		}
	}
	return out, iter.Err()
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
