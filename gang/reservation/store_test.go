package reservation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation/redistest"
)

// backend is a Redis for a test. Only the embedded one has a clock that can be set.
type backend struct {
	client redis.UniversalClient
	mini   *miniredis.Miniredis
}

// onBoth runs the test on an embedded and on a real Redis.
func onBoth(t *testing.T, test func(t *testing.T, b backend)) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, embedded(t))
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		client, err := Connect(redistest.Start(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		test(t, backend{client: client})
	})
}

func embedded(t testing.TB) backend {
	client, server, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		server.Close()
	})
	return backend{client, server}
}

func newStore(t testing.TB, b backend) *Store {
	t.Helper()
	return New(Options{Cluster: "test", Client: b.client, Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
}

// follow runs a mirror of the store until the test ends, and waits until it is
// loaded.
func follow(t testing.TB, s *Store) *Mirror {
	t.Helper()
	m := NewMirror(s)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	await(t, m, func() bool { return m.Up() })
	return m
}

// await waits until the condition holds, looking after each change of the mirror.
func await(t testing.TB, m *Mirror, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		m.mu.RLock()
		changes := m.changes
		m.mu.RUnlock()
		if condition() {
			return
		}
		select {
		case <-changes:
		case <-time.After(50 * time.Millisecond): // for conditions on more than the mirror
		case <-deadline:
			t.Fatal("the condition did not come to hold")
		}
	}
}

// synced waits until the mirror has seen all that its store has done.
func synced(t testing.TB, m *Mirror) State {
	t.Helper()
	await(t, m, func() bool { return m.State().Synced })
	return m.State()
}

var key = gang.Key{Namespace: "ns", Name: "g"}

// sample is a reservation for n required members.
func sample(k gang.Key, attempt string, n int) Reservation {
	r := Reservation{Gang: k, Attempt: attempt, Need: n, Seen: 7, Requests: []map[string]int64{{"cpu": 1000, "nvidia.com/gpu": 8}}}
	for i := range n {
		r.Members = append(r.Members, Member{UID: fmt.Sprintf("%s-%s-%d", k.Name, attempt, i), Name: fmt.Sprint("p", i), Node: fmt.Sprint("n", i), Required: true})
	}
	return r
}

func reserve(t testing.TB, s *Store, at Revision, r Reservation, replaces string) Outcome {
	t.Helper()
	out, err := s.Reserve(t.Context(), at, r, time.Minute, replaces)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReserve(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s := newStore(t, b)
		at, err := s.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first := reserve(t, s, at, sample(key, "a1", 2), "")
		if first.Result != ResultReserved || first.Revision.Rev != at.Rev+1 {
			t.Fatalf("got %+v", first)
		}
		if r := first.Reservation; r.Phase != Reserved || r.Deadline.Sub(r.Created) != time.Minute || len(r.Members) != 2 || r.Requests[0]["cpu"] != 1000 {
			t.Errorf("stored %+v", r)
		}
		other := gang.Key{Namespace: "ns", Name: "h"}
		if out := reserve(t, s, at, sample(other, "b1", 1), ""); out.Result != ResultConflict {
			t.Errorf("room was taken since the revision: got result %d", out.Result)
		}
		if out := reserve(t, s, first.Revision, sample(key, "a2", 2), ""); out.Result != ResultConflict {
			t.Errorf("the gang has a reservation already: got result %d", out.Result)
		}
		if out := reserve(t, s, first.Revision, sample(key, "a2", 2), "a0"); out.Result != ResultConflict {
			t.Errorf("another attempt was to be replaced: got result %d", out.Result)
		}
		second := reserve(t, s, first.Revision, sample(key, "a2", 2), "a1")
		if second.Result != ResultReserved {
			t.Errorf("replacing the present attempt: got result %d", second.Result)
		}
		// A release gives room and voids nobody's plan.
		if ended, err := s.Abort(t.Context(), key, "a2", "test"); err != nil || !ended {
			t.Fatalf("abort: %t %v", ended, err)
		}
		if out := reserve(t, s, second.Revision, sample(other, "b1", 1), ""); out.Result != ResultReserved {
			t.Errorf("only room was given back since the revision: got result %d", out.Result)
		}
		if out := reserve(t, s, Revision{"another", 99}, sample(key, "a3", 1), ""); out.Result != ResultFenced {
			t.Errorf("another incarnation: got result %d", out.Result)
		}
		free := sample(key, "a4", 0)
		free.Members = []Member{{Node: "n1"}}
		m := follow(t, s)
		if out := reserve(t, s, synced(t, m).Revision, free, ""); out.Reservation.Phase != Committed {
			t.Errorf("without required members: phase %s", out.Reservation.Phase)
		}
	})
}

func TestRelease(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s := newStore(t, b)
		m := follow(t, s)
		ctx := t.Context()
		type end func() (bool, error)
		abort := func(a string) end { return func() (bool, error) { return s.Abort(ctx, key, a, "why") } }
		expire := func(a string) end { return func() (bool, error) { return s.Expire(ctx, key, a, "why") } }
		finish := func(a string) end { return func() (bool, error) { return s.Finish(ctx, key, a, 40) } }
		drop := func(a string) end { return func() (bool, error) { return s.Drop(ctx, key, a, 50) } }
		check := func(what string, f end, want bool) {
			t.Helper()
			if got, err := f(); err != nil || got != want {
				t.Errorf("%s: got %t %v, want %t", what, got, err, want)
			}
		}
		reserve(t, s, synced(t, m).Revision, sample(key, "a", 1), "")
		check("abort of another attempt", abort("b"), false)
		check("finish before the commit", finish("a"), false)
		check("expire before the deadline", expire("a"), false)
		check("abort", abort("a"), true)
		check("abort again", abort("a"), false)

		r := sample(key, "b", 1)
		reserve(t, s, synced(t, m).Revision, r, "")
		if word, err := s.arrive(ctx, key, "b", time.Minute, []string{r.Members[0].UID}); err != nil || word != "committed" {
			t.Fatalf("arrive: %s %v", word, err)
		}
		check("abort after the commit", abort("b"), false)
		check("expire after the commit", expire("b"), false)
		check("finish", finish("b"), true)
		if got := synced(t, m).AsOf; got != 40 {
			t.Errorf("a planner must have seen pods up to %d, want 40", got)
		}
		reserve(t, s, synced(t, m).Revision, sample(key, "c", 1), "")
		check("drop", drop("c"), true)
		if state := synced(t, m); state.AsOf != 50 || len(state.Reservations) != 0 {
			t.Errorf("after the drop: %+v", state)
		}
		left, err := s.Leftovers(ctx)
		if err != nil || len(left) > 0 {
			t.Errorf("left over: %v %v", left, err)
		}
	})
}

// TestCase_A2_TimeoutsWorkFromSecondsToDays: a hold stays until its time is up by
// Redis's clock, and goes then.
func TestCase_A2_TimeoutsWorkFromSecondsToDays(t *testing.T) {
	for _, hold := range []time.Duration{time.Second, 45 * time.Second, 7200 * time.Second, 24 * time.Hour} {
		t.Run(hold.String(), func(t *testing.T) {
			b := embedded(t)
			start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
			b.mini.SetTime(start)
			s := newStore(t, b)
			at, err := s.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Reserve(t.Context(), at, sample(key, "a", 1), hold, ""); err != nil {
				t.Fatal(err)
			}
			b.mini.SetTime(start.Add(hold - time.Millisecond))
			if ended, err := s.Expire(t.Context(), key, "a", ""); err != nil || ended {
				t.Errorf("before its time is up: %t %v", ended, err)
			}
			b.mini.SetTime(start.Add(hold))
			if ended, err := s.Expire(t.Context(), key, "a", ""); err != nil || !ended {
				t.Errorf("when its time is up: %t %v", ended, err)
			}
		})
	}
}

func TestFeed(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s, other := newStore(t, b), newStore(t, b)
		m, n := follow(t, s), follow(t, other)
		r := sample(key, "a", 2)
		reserve(t, s, synced(t, m).Revision, r, "")
		held := func(m *Mirror, phase Phase) func() bool {
			return func() bool {
				h, ok := m.Seat(r.Members[1].UID)
				return ok && h == Held{Gang: key, Attempt: "a", Node: "n1", Phase: phase}
			}
		}
		await(t, n, held(n, Reserved))
		if err := other.SetVerdict(t.Context(), gang.Key{Namespace: "x", Name: "y"}, Verdict{"room", "no"}); err != nil {
			t.Fatal(err)
		}
		if _, err := other.arrive(t.Context(), key, "a", time.Minute, []string{r.Members[0].UID, r.Members[1].UID}); err != nil {
			t.Fatal(err)
		}
		await(t, m, held(m, Committed))
		await(t, m, func() bool { return len(m.VerdictKeys()) == 1 })
		if m.CommittedAt(key).IsZero() {
			t.Error("the mirror does not know when the gang was committed")
		}
		same := func() bool {
			return cmp.Equal(m.State().Reservations, n.State().Reservations) && m.State().Revision == n.State().Revision
		}
		await(t, n, same)
		if _, err := s.Finish(t.Context(), key, "a", 1); err != nil {
			t.Fatal(err)
		}
		if err := s.ClearVerdict(t.Context(), gang.Key{Namespace: "x", Name: "y"}); err != nil {
			t.Fatal(err)
		}
		await(t, n, func() bool {
			_, seat := n.Seat(r.Members[0].UID)
			return !seat && len(n.VerdictKeys()) == 0 && same()
		})
	})
}

// TestWipedRedis: whoever planned on the emptied store is fenced off, and mirrors
// notice by themselves.
func TestWipedRedis(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s := newStore(t, b)
		m := follow(t, s)
		reserve(t, s, synced(t, m).Revision, sample(key, "a", 1), "")
		old := synced(t, m).Revision
		if err := b.client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		await(t, m, func() bool { return m.State().Revision.Incarnation != old.Incarnation })
		if out := reserve(t, s, old, sample(key, "b", 1), ""); out.Result != ResultFenced {
			t.Errorf("a plan on the emptied store: got result %d", out.Result)
		}
		if n := len(synced(t, m).Reservations); n != 0 {
			t.Errorf("the mirror still has %d reservations", n)
		}
	})
}

// TestTrimmedFeed: a mirror that missed a part of the feed reads everything anew.
func TestTrimmedFeed(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s, other := newStore(t, b), newStore(t, b)
		m := NewMirror(s)
		if err := m.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		first := reserve(t, other, m.State().Revision, sample(key, "a", 1), "")
		if err := b.client.XTrimMaxLen(t.Context(), s.keys.feed(), 0).Err(); err != nil {
			t.Fatal(err)
		}
		reserve(t, other, first.Revision, sample(gang.Key{Namespace: "ns", Name: "h"}, "b", 1), "")
		if _, err := m.read(t.Context(), blockFor); !errors.Is(err, errGap) {
			t.Errorf("got %v, want a gap", err)
		}
		if n := len(m.State().Reservations); n != 0 {
			t.Errorf("%d reservations were taken in across the gap", n)
		}
		if n := len(synced(t, follow(t, s)).Reservations); n != 2 {
			t.Errorf("%d reservations were read anew, want 2", n)
		}
	})
}

func TestNewerSchemaIsRefused(t *testing.T) {
	b := embedded(t)
	s := newStore(t, b)
	b.mini.HSet(s.keys.meta(), "schema", "2", "incarnation", "x", "rev", "0")
	if _, err := s.open(t.Context()); err == nil || !strings.Contains(err.Error(), "schema 2") {
		t.Errorf("got %v", err)
	}
}

func TestLease(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s := newStore(t, b)
		for i, step := range []struct {
			holder string
			want   bool
		}{{"a", true}, {"b", false}, {"a", true}} {
			if got, err := s.Lease(t.Context(), "l", step.holder, time.Minute); err != nil || got != step.want {
				t.Errorf("step %d: %s: got %t %v", i, step.holder, got, err)
			}
		}
		if b.mini != nil {
			b.mini.FastForward(2 * time.Minute)
			if got, err := s.Lease(t.Context(), "l", "b", time.Minute); err != nil || !got {
				t.Errorf("after the lease: got %t %v", got, err)
			}
		}
	})
}

func TestResign(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s := newStore(t, b)
		if got, err := s.Lease(t.Context(), "l", "a", time.Minute); err != nil || !got {
			t.Fatalf("got %t %v", got, err)
		}
		for _, step := range []struct {
			holder string
			free   bool
		}{{"b", false}, {"a", true}} {
			if err := s.Resign(t.Context(), "l", step.holder); err != nil {
				t.Fatal(err)
			}
			if n, err := b.client.Exists(t.Context(), s.keys.lease("l")).Result(); err != nil || (n == 0) != step.free {
				t.Errorf("after %s has resigned: %d leases, %v", step.holder, n, err)
			}
		}
	})
}
