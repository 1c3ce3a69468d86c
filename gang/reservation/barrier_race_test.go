package reservation

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// slowCalls lets a test hold back calls of one script.
type slowCalls struct {
	sha  string
	mu   sync.Mutex
	held chan chan struct{} // receives one channel per held call; closing it lets go
}

func (h *slowCalls) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h *slowCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *slowCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.mu.Lock()
		held := h.held
		h.mu.Unlock()
		if args := cmd.Args(); held != nil && len(args) > 1 && strings.HasPrefix(fmt.Sprint(args[0]), "eval") && args[1] == h.sha {
			release := make(chan struct{})
			held <- release
			<-release
		}
		return next(ctx, cmd)
	}
}

func (h *slowCalls) hold(to chan chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = to
}

// TestWithdrawalIsAfterTheArrival: an arrival that is on its way when its caller
// gives up must not count afterwards.
func TestWithdrawalIsAfterTheArrival(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		r := newReplica(t, b)
		res := sample(key, "a", 2)
		reserve(t, r.Store, synced(t, r.mirror).Revision, res, "")
		slow := &slowCalls{sha: arriveScript.Hash()}
		b.client.AddHook(slow)
		held := make(chan chan struct{}, 1)
		slow.hold(held)
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := r.wait(ctx, "a", res.Members[0].UID)
		release := <-held
		slow.hold(nil)
		cancel()
		// The withdrawal may overtake the arrival now, if it can.
		select {
		case <-gaveUp:
			t.Error("withdrawn while the arrival is on its way")
			close(release)
		case <-time.After(100 * time.Millisecond):
			close(release)
			want(t, gaveUp, WaitWithdrawn)
		}
		if word, err := r.arrive(t.Context(), key, "a", time.Minute, []string{res.Members[1].UID}); err != nil || word != "waiting" {
			t.Errorf("the last but one arrives: %s %v", word, err)
		}
	})
}

// TestComingBackToTheBarrier: a member that withdrew and comes again is counted at
// once, while others of its gang wait on.
func TestComingBackToTheBarrier(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		r := newReplica(t, b)
		r.barrier.renew = time.Hour
		res := sample(key, "a", 3)
		reserve(t, r.Store, synced(t, r.mirror).Revision, res, "")
		stays := r.wait(t.Context(), "a", res.Members[0].UID)
		ctx, cancel := context.WithCancel(t.Context())
		leaves := r.wait(ctx, "a", res.Members[1].UID)
		r.arrived(t, "a", 2)
		cancel()
		want(t, leaves, WaitWithdrawn)
		r.arrived(t, "a", 1)
		before := samples(t, r.metrics.calls, "arrive")
		again := r.wait(t.Context(), "a", res.Members[1].UID)
		r.arrived(t, "a", 2)
		if got := samples(t, r.metrics.calls, "arrive"); got != before+1 {
			t.Errorf("it took %d calls", got-before)
		}
		last := r.wait(t.Context(), "a", res.Members[2].UID)
		for _, c := range []<-chan ended{stays, again, last} {
			want(t, c, WaitCommitted)
		}
	})
}

// TestTwoCallersOfOneMember: the member stays at the barrier until the last of its
// callers has given up, even if they do so at the same time.
func TestTwoCallersOfOneMember(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		r := newReplica(t, b)
		res := sample(key, "a", 2)
		uid := res.Members[0].UID
		reserve(t, r.Store, synced(t, r.mirror).Revision, res, "")
		early, giveUpEarly := context.WithCancel(t.Context())
		late, giveUpLate := context.WithCancel(t.Context())
		callers := []<-chan ended{r.wait(early, "a", uid), r.wait(late, "a", uid), r.wait(late, "a", uid)}
		r.waiting(t, uid, 3)
		r.arrived(t, "a", 1)
		giveUpEarly()
		if w := want(t, callers[0], WaitWithdrawn); w != anotherWaits {
			t.Errorf("the first to give up is told %s", w)
		}
		r.arrived(t, "a", 1)
		giveUpLate()
		want(t, callers[1], WaitWithdrawn)
		want(t, callers[2], WaitWithdrawn)
		if uids, err := r.Arrived(t.Context(), key, "a"); err != nil || len(uids) > 0 {
			t.Errorf("nobody waits, and Redis has %v %v", uids, err)
		}
	})
}

// waiting awaits n callers for the member in this replica.
func (r *replica) waiting(t testing.TB, uid string, n int) {
	t.Helper()
	await(t, r.mirror, func() bool {
		r.barrier.mu.Lock()
		defer r.barrier.mu.Unlock()
		g := r.barrier.groups["a"]
		return g != nil && g.waiting[uid] == n
	})
}

// TestACrowdGivesUp: a thousand callers that give up at once, as when their
// scheduler ends, are withdrawn together.
func TestACrowdGivesUp(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		const n = 1000
		r := newReplica(t, b)
		res := sample(key, "a", n+1)
		reserve(t, r.Store, synced(t, r.mirror).Revision, res, "")
		ctx, cancel := context.WithCancel(t.Context())
		callers := make([]<-chan ended, n)
		for i := range callers {
			callers[i] = r.wait(ctx, "a", res.Members[i].UID)
		}
		r.arrived(t, "a", n)
		cancel()
		for _, c := range callers {
			want(t, c, WaitWithdrawn)
		}
		if uids, err := r.Arrived(t.Context(), key, "a"); err != nil || len(uids) > 0 {
			t.Errorf("%d are still counted: %v", len(uids), err)
		}
		if got := samples(t, r.metrics.calls, "withdraw"); got > n/4 {
			t.Errorf("%d calls for %d members", got, n)
		}
	})
}

// TestCommitRacesWithdrawal: when a caller gives up just as the last member comes,
// its answer is what the store says, for ever.
func TestCommitRacesWithdrawal(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		r, o := newReplica(t, b), newReplica(t, b)
		for i := range 30 {
			attempt := fmt.Sprint("a", i)
			res := sample(key, attempt, 2)
			reserve(t, r.Store, synced(t, r.mirror).Revision, res, "")
			ctx, cancel := context.WithCancel(t.Context())
			racing := r.wait(ctx, attempt, res.Members[0].UID)
			r.arrived(t, attempt, 1)
			var word string
			var err error
			var wg sync.WaitGroup
			wg.Go(cancel)
			wg.Go(func() { word, err = o.arrive(t.Context(), key, attempt, time.Minute, []string{res.Members[1].UID}) })
			wg.Wait()
			if err != nil {
				t.Fatal(err)
			}
			outcome := WaitWithdrawn
			if word == "committed" {
				outcome = WaitCommitted
			}
			want(t, racing, outcome)
			if ended, err := r.Drop(t.Context(), key, attempt, 0); err != nil || !ended {
				t.Fatal(ended, err)
			}
		}
	})
}
