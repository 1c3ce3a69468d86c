package reservation

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// replica is a store with its mirror and barrier.
type replica struct {
	*Store
	mirror  *Mirror
	barrier *Barrier
}

func newReplica(t testing.TB, b backend) *replica {
	t.Helper()
	s := newStore(t, b)
	m := follow(t, s)
	return &replica{s, m, NewBarrier(s, m)}
}

type ended struct {
	w   Wait
	err error
}

// wait waits at the barrier in the background.
func (r *replica) wait(ctx context.Context, attempt, uid string) <-chan ended {
	out := make(chan ended, 1)
	go func() {
		w, err := r.barrier.Wait(ctx, key, attempt, uid)
		out <- ended{w, err}
	}()
	return out
}

func (r *replica) arrived(t testing.TB, attempt string, n int) {
	t.Helper()
	await(t, r.mirror, func() bool {
		uids, err := r.Arrived(t.Context(), key, attempt)
		return err == nil && len(uids) == n
	})
}

func want(t testing.TB, c <-chan ended, outcome WaitOutcome) Wait {
	t.Helper()
	select {
	case e := <-c:
		if e.err != nil || e.w.Outcome != outcome {
			t.Fatalf("got %s %v, want %s", e.w, e.err, outcome)
		}
		return e.w
	case <-time.After(20 * time.Second):
		t.Fatalf("still waiting; want %s", outcome)
	}
	return Wait{}
}

func TestBarrierCommitsWithTheLast(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		r, o := newReplica(t, b), newReplica(t, b)
		res := sample(key, "a", 3)
		res.Members = append(res.Members, Member{UID: "surplus", Node: "n9"})
		reserve(t, r.Store, synced(t, r.mirror).Revision, res, "")
		await(t, o.mirror, func() bool { _, ok := o.mirror.Reservation(key); return ok })
		first := r.wait(t.Context(), "a", res.Members[0].UID)
		surplus := o.wait(t.Context(), "a", "surplus")
		second := o.wait(t.Context(), "a", res.Members[1].UID)
		r.arrived(t, "a", 2)
		if held, _ := r.mirror.Seat(res.Members[0].UID); held.Phase != Reserved {
			t.Fatal("committed without the last member")
		}
		last := r.wait(t.Context(), "a", res.Members[2].UID)
		for _, c := range []<-chan ended{first, surplus, second, last} {
			want(t, c, WaitCommitted)
		}
		// Whoever comes later goes through.
		want(t, o.wait(t.Context(), "a", res.Members[1].UID), WaitCommitted)
	})
}

func TestBarrierTellsWhyItWasAborted(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		r, o := newReplica(t, b), newReplica(t, b)
		res := sample(key, "a", 2)
		reserve(t, r.Store, synced(t, r.mirror).Revision, res, "")
		await(t, o.mirror, func() bool { _, ok := o.mirror.Reservation(key); return ok })
		waiting := o.wait(t.Context(), "a", res.Members[0].UID)
		r.arrived(t, "a", 1)
		if ended, err := r.Abort(t.Context(), key, "a", "node n1 is gone"); err != nil || !ended {
			t.Fatal(ended, err)
		}
		if w := want(t, waiting, WaitAborted); w.Why != "node n1 is gone" {
			t.Errorf("got %q", w.Why)
		}
		want(t, r.wait(t.Context(), "a", res.Members[1].UID), WaitAborted)
	})
}

func TestBarrierWithdraws(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		r := newReplica(t, b)
		res := sample(key, "a", 2)
		reserve(t, r.Store, synced(t, r.mirror).Revision, res, "")
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := r.wait(ctx, "a", res.Members[0].UID)
		r.arrived(t, "a", 1)
		cancel()
		want(t, gaveUp, WaitWithdrawn)
		other := r.wait(t.Context(), "a", res.Members[1].UID)
		r.arrived(t, "a", 1)
		if held, _ := r.mirror.Seat(res.Members[0].UID); held.Phase != Reserved {
			t.Fatal("committed with a member that had gone")
		}
		want(t, r.wait(t.Context(), "a", res.Members[0].UID), WaitCommitted)
		want(t, other, WaitCommitted)
		// Too late: what is committed stays so.
		if word, err := r.withdraw(t.Context(), key, "a", res.Members[0].UID); err != nil || word != "committed" {
			t.Errorf("withdrawing after the commit: %s %v", word, err)
		}
	})
}

// TestReplacedArrivalsDoNotCount: who has arrived for one reservation has not for
// the one that replaces it.
func TestReplacedArrivalsDoNotCount(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		s := newStore(t, b)
		at, err := s.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		res := sample(key, "a", 2)
		out := reserve(t, s, at, res, "")
		step := func(attempt string, i int, want string) {
			t.Helper()
			word, err := s.arrive(t.Context(), key, attempt, time.Minute, []string{res.Members[i].UID})
			if err != nil || word != want {
				t.Errorf("member %d for %s: got %s %v, want %s", i, attempt, word, err, want)
			}
		}
		step("a", 0, "waiting")
		res.Attempt = "b" // for the same pods
		reserve(t, s, out.Revision, res, "a")
		step("a", 1, "gone")
		step("b", 1, "waiting")
		step("b", 0, "committed")
	})
}

// TestBarrierForgetsTheDead: an arrival counts only as long as its lease.
func TestBarrierForgetsTheDead(t *testing.T) {
	b := embedded(t)
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b.mini.SetTime(start)
	s := newStore(t, b)
	at, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	res := sample(key, "a", 2)
	reserve(t, s, at, res, "")
	arrive := func(i int) string {
		word, err := s.arrive(t.Context(), key, "a", arrivalLease, []string{res.Members[i].UID})
		if err != nil {
			t.Fatal(err)
		}
		return word
	}
	if got := arrive(0); got != "waiting" {
		t.Fatal(got)
	}
	b.mini.SetTime(start.Add(arrivalLease + time.Millisecond))
	if got := arrive(1); got != "waiting" {
		t.Errorf("the first member's lease has run out: got %s", got)
	}
	if got := arrive(0); got != "committed" {
		t.Errorf("both are here: got %s", got)
	}
}

// TestBarrierWithAThousand: members that arrive at once cost few calls.
func TestBarrierWithAThousand(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		const n = 1000
		replicas := []*replica{newReplica(t, b), newReplica(t, b)}
		res := sample(key, "a", n)
		reserve(t, replicas[0].Store, synced(t, replicas[0].mirror).Revision, res, "")
		for _, r := range replicas {
			await(t, r.mirror, func() bool { _, ok := r.mirror.Reservation(key); return ok })
		}
		var wg sync.WaitGroup
		errs := make(chan error, n)
		for i := range n {
			wg.Go(func() {
				w, err := replicas[i%2].barrier.Wait(t.Context(), key, "a", res.Members[i].UID)
				if err != nil || w.Outcome != WaitCommitted {
					errs <- fmt.Errorf("member %d: %s %w", i, w, err)
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Fatal(err)
		}
		for i, r := range replicas {
			if calls := testutil.CollectAndCount(r.metrics.calls); calls == 0 {
				t.Fatal("nothing was counted")
			}
			if got := samples(t, r.metrics.calls, "arrive"); got > n/4 {
				t.Errorf("replica %d made %d calls for %d members", i, got, n/2)
			}
		}
	})
}

// samples counts the calls of an operation.
func samples(t testing.TB, vec *prometheus.HistogramVec, operation string) int {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(vec)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range families[0].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "operation" && l.GetValue() == operation {
				n += int(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return n
}

func TestMetricsAreClean(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := New(Options{Cluster: "test", Client: embedded(t).client, Registerer: reg})
	NewMirror(s)
	s.metrics.calls.WithLabelValues("open", "ok")
	s.metrics.conflicts.WithLabelValues("outrun")
	s.metrics.ended.WithLabelValues("abort")
	s.metrics.waits.WithLabelValues("committed")
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}
