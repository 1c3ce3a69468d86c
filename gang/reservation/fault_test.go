package reservation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// TestEveryChangeIsFencedAfterAWipe: whatever comes first to an emptied Redis, the
// store can be made anew there.
func TestEveryChangeIsFencedAfterAWipe(t *testing.T) {
	changes := map[string]func(context.Context, *Store) error{
		"verdict": func(ctx context.Context, s *Store) error {
			if err := s.SetVerdict(ctx, key, Verdict{Code: "room"}); !errors.Is(err, ErrFenced) {
				return fmt.Errorf("got %w, want ErrFenced", err)
			}
			return nil
		},
		"abort": func(ctx context.Context, s *Store) error {
			ended, err := s.Abort(ctx, key, "a", "why")
			return unexpected(ended, err)
		},
		"drop": func(ctx context.Context, s *Store) error {
			ended, err := s.Drop(ctx, key, "a", 9)
			return unexpected(ended, err)
		},
		"arrive": func(ctx context.Context, s *Store) error {
			word, err := s.arrive(ctx, key, "a", time.Minute, []string{"g-a-0"})
			return unexpected(word != "gone", err)
		},
		"withdraw": func(ctx context.Context, s *Store) error {
			word, err := s.withdraw(ctx, key, "a", "g-a-0")
			return unexpected(word != "gone", err)
		},
		"lease": func(ctx context.Context, s *Store) error {
			_, err := s.Lease(ctx, "l", "me", time.Minute)
			return err
		},
	}
	onBoth(t, func(t *testing.T, b backend) {
		for name, change := range changes {
			s := newStore(t, b)
			at, err := s.open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			reserve(t, s, at, sample(key, "a", 1), "")
			if err := b.client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if err := change(t.Context(), s); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			again, err := s.open(t.Context())
			if err != nil || again.Incarnation == at.Incarnation {
				t.Errorf("%s: the store was not made anew: %v %v", name, again, err)
			}
			if err := b.client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func unexpected(answer bool, err error) error {
	if err == nil && answer {
		err = errors.New("the emptied store still knows the reservation")
	}
	return err
}

// TestUnreadableRecord: a mirror that cannot read a reservation must not let
// anybody plan as if it were not there, and can answer for what it knows.
func TestUnreadableRecord(t *testing.T) {
	b := embedded(t)
	s, other := newStore(t, b), newStore(t, b)
	m := NewMirror(s)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	known := sample(key, "a", 1)
	reserve(t, other, m.State().Revision, known, "")
	if err := m.load(t.Context()); err != nil || !m.State().Synced {
		t.Fatal(err)
	}
	b.mini.HSet(s.keys.gangs(), "ns/bad", "nonsense")
	if err := m.follow(t.Context()); err == nil || !strings.Contains(err.Error(), "ns/bad") {
		t.Errorf("got %v", err)
	}
	if m.State().Synced {
		t.Errorf("planners are given %+v", m.State())
	}
	if _, ok := m.Seat(known.Members[0].UID); !ok {
		t.Error("the place that was known is forgotten")
	}
}

// lose puts the store back to an earlier revision, as a failover to a replica of
// Redis that was behind does.
func lose(t *testing.T, b backend, s *Store, key gang.Key, at Revision) {
	t.Helper()
	_, err := b.client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.HSet(t.Context(), s.keys.meta(), "rev", at.Rev, "taken", at.Rev)
		p.HDel(t.Context(), s.keys.gangs(), field(key))
		p.Del(t.Context(), s.keys.state(key), s.keys.need(key), s.keys.feed())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestLostWrites: a Redis that has lost writes is noticed, plans made on what was
// lost are fenced off, and planning goes on, for every replica.
func TestLostWrites(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s, other := newStore(t, b), newStore(t, b)
		m, n := follow(t, s), follow(t, other)
		before := synced(t, m).Revision
		reserve(t, s, before, sample(key, "a", 1), "")
		lost := synced(t, m).Revision
		await(t, n, func() bool { return n.State().Revision == lost })
		lose(t, b, s, key, before)
		for _, mirror := range []*Mirror{m, n} {
			await(t, mirror, func() bool { return mirror.State().Synced && mirror.State().Revision.Incarnation != before.Incarnation })
		}
		await(t, n, func() bool { return m.State().Revision == n.State().Revision })
		if out := reserve(t, other, lost, sample(key, "b", 1), ""); out.Result != ResultFenced {
			t.Errorf("a plan on what was lost: got result %d", out.Result)
		}
		if out := reserve(t, s, synced(t, m).Revision, sample(key, "c", 1), ""); out.Result != ResultReserved {
			t.Errorf("a plan on what is left: got result %d", out.Result)
		}
	})
}

// TestLostWritesUnnoticed: a plan on what was lost is fenced off before any mirror
// has noticed the loss.
func TestLostWritesUnnoticed(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s := newStore(t, b)
		before, err := s.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		lost := reserve(t, s, before, sample(key, "a", 1), "").Revision
		lose(t, b, s, key, before)
		other := gang.Key{Namespace: "ns", Name: "h"}
		if out := reserve(t, s, lost, sample(other, "b", 1), ""); out.Result != ResultFenced {
			t.Errorf("got result %d", out.Result)
		}
	})
}

// TestFencedPlannerWaits: after a plan was fenced off, there is nothing to plan on
// until the mirror has found the new store.
func TestFencedPlannerWaits(t *testing.T) {
	b := embedded(t)
	s := newStore(t, b)
	m := NewMirror(s)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.mini.FlushAll()
	if out := reserve(t, s, m.State().Revision, sample(key, "a", 1), ""); out.Result != ResultFenced {
		t.Fatalf("got result %d", out.Result)
	}
	if m.State().Synced {
		t.Error("the same snapshot is offered again")
	}
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !m.State().Synced {
		t.Error("the new store is not offered")
	}
}

// TestRedisAway: while Redis cannot be reached nothing is planned, and what is known
// is answered; when it is back, all goes on.
func TestRedisAway(t *testing.T) {
	b := embedded(t)
	s := newStore(t, b)
	m := follow(t, s)
	res := sample(key, "a", 1)
	reserve(t, s, synced(t, m).Revision, res, "")
	at := synced(t, m).Revision
	b.mini.Close()
	await(t, m, func() bool { return !m.State().Synced })
	if _, ok := m.Seat(res.Members[0].UID); !ok {
		t.Error("the place is forgotten")
	}
	if out, err := s.Reserve(t.Context(), at, sample(key, "b", 1), time.Minute, "a"); err == nil {
		t.Errorf("reserved without Redis: %+v", out)
	}
	if err := b.mini.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := synced(t, m).Revision; got != at {
		t.Errorf("at %v, want %v", got, at)
	}
}

// TestVanishedFeed: changes of which the feed has nothing are noticed even if no
// others follow.
func TestVanishedFeed(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s := newStore(t, b)
		m := follow(t, s)
		if err := b.client.HIncrBy(t.Context(), s.keys.meta(), "rev", 1).Err(); err != nil {
			t.Fatal(err)
		}
		await(t, m, func() bool { return m.State().Revision.Rev == 1 && m.State().Synced })
	})
}

// TestReloadKeepsTimes: reading everything anew does not make a commit younger.
func TestReloadKeepsTimes(t *testing.T) {
	b := embedded(t)
	s := newStore(t, b)
	m := NewMirror(s)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	reserve(t, s, m.State().Revision, sample(key, "a", 0), "")
	for _, reload := range []bool{false, true} {
		before := m.CommittedAt(key)
		if err := m.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := m.CommittedAt(key); after.IsZero() || (reload && !after.Equal(before)) {
			t.Errorf("committed at %s, and after a reload at %s", before, after)
		}
	}
}

// TestReserveRepeated: a call that is sent again since its answer was lost gets the
// same answer.
func TestReserveRepeated(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s := newStore(t, b)
		at, err := s.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first := reserve(t, s, at, sample(key, "a", 1), "")
		second := reserve(t, s, at, sample(key, "a", 1), "")
		if second.Result != ResultReserved || second.Revision != first.Revision || !second.Reservation.Deadline.Equal(first.Reservation.Deadline) {
			t.Errorf("got %+v, then %+v", first, second)
		}
		other := gang.Key{Namespace: "ns", Name: "h"}
		reserve(t, s, first.Revision, sample(other, "b", 1), "")
		third := reserve(t, s, at, sample(key, "a", 1), "")
		if third.Revision != first.Revision {
			t.Errorf("the answer hides that room was taken since: %+v", third)
		}
	})
}

// TestLargeGangs: ten thousand members go through in single calls.
func TestLargeGangs(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		const n = 10_000
		s := newStore(t, b)
		m := follow(t, s)
		res := sample(key, "a", n)
		if out := reserve(t, s, synced(t, m).Revision, res, ""); out.Result != ResultReserved || len(out.Reservation.Members) != n {
			t.Fatalf("got result %d", out.Result)
		}
		var uids []string
		for _, member := range res.Members {
			uids = append(uids, member.UID)
		}
		if word, err := s.arrive(t.Context(), key, "a", time.Minute, uids[:n-1]); err != nil || word != "waiting" {
			t.Fatalf("all but one: %s %v", word, err)
		}
		if word, err := s.arrive(t.Context(), key, "a", time.Minute, uids[n-1:]); err != nil || word != "committed" {
			t.Fatalf("the last: %s %v", word, err)
		}
		if got := synced(t, m); got.Revision.Rev == 0 {
			t.Error("the mirror did not follow")
		}
		await(t, m, func() bool { held, ok := m.Seat(uids[n-1]); return ok && held.Phase == Committed })
	})
}
