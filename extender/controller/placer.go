package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// placer carries reservations out to the pods: it pins or nominates them and
// removes their gates. It is driven by what the pods look like now, so it can be
// called again and again, and by any replica.
//
//	gated, pinnable    ── pin ──▶ ungated and tied to its node    (one write)
//	gated, otherwise   ── nominate ──▶ gated ── ungate ──▶ ungated (two writes)
//	ungated, unpinned  ── nominate ──▶ nominated                  (one write)
//	there and refused  ── wake ──▶ tried again                    (one write)
type placer struct {
	writer *Writer
	pods   func(types.UID) (*cluster.Pod, bool)
	now    func() time.Time
	log    *slog.Logger
	slots  chan struct{} // bounds the writes under way

	mu   sync.Mutex
	sent map[types.UID]sent
	busy map[job]bool
	done sync.WaitGroup
}

// job is a write that is under way.
type job struct {
	what string
	pod  types.UID
}

// sent is what was last done for a pod, to be done again only if the watch does
// not show it in time.
type sent struct {
	node    string
	attempt string    // the reservation that it was done for
	at      time.Time // first time for this reservation
	tried   time.Time
	before  string // message of the pod's condition PodScheduled at that time
}

// resendAfter is how long the watch may take to show a write of ours.
const resendAfter = 10 * time.Second

// place makes the pods of the reservation what it wants them to be. It returns
// at once; writes go on in the background, at most cap(slots) at a time.
func (p *placer) place(ctx context.Context, r *reservation.Reservation) {
	for _, m := range r.Members {
		if m.UID == "" {
			continue
		}
		pod, ok := p.pods(types.UID(m.UID))
		if ok && pod.Phase == gang.Pending && p.note(pod, m.Node, r.Attempt) {
			p.start(ctx, pod, m.Node, r.Attempt)
		}
	}
}

// placed tells whether kube-scheduler can find the pod's way to the node.
func placed(pod *cluster.Pod, node string) bool {
	switch {
	case pod.Gated:
		return false
	case pod.Pinned != "":
		return true // it cannot be sent anywhere else
	default:
		return pod.Nominated == node
	}
}

// unplace takes nominations back from pods that have no reservation any more.
func (p *placer) unplace(ctx context.Context, pod *cluster.Pod) {
	if pod.Phase == gang.Pending && !pod.Gated && pod.Pinned == "" && pod.Nominated != "" {
		if p.note(pod, "", "") {
			p.start(ctx, pod, "", "")
		}
	}
}

// note remembers that the pod is on its way to the node, and tells whether a
// write is due for that. A pod that is on its way there since an earlier
// reservation may have been refused meanwhile, and must be woken.
func (p *placer) note(pod *cluster.Pod, node, attempt string) bool {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.sent[pod.UID]
	asleep := false
	if !ok || last.node != node || last.attempt != attempt {
		last = sent{node: node, attempt: attempt, at: now, before: pod.Message}
		asleep = placed(pod, node) && pod.Refused != ""
	}
	due := asleep || !placed(pod, node) && now.Sub(last.tried) >= resendAfter
	if due {
		last.tried = now
	}
	p.sent[pod.UID] = last
	return due
}

// placedAt is when the pod was first sent to where it is meant to go now, and
// what its condition said then; zero if it was not.
func (p *placer) placedAt(uid string) (time.Time, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.sent[types.UID(uid)]
	return last.at, last.before
}

func (p *placer) start(ctx context.Context, pod *cluster.Pod, node, attempt string) {
	p.background(ctx, "placing", pod, func(ctx context.Context) error {
		err := p.write(ctx, pod, node, attempt)
		if err != nil {
			p.again(pod.UID)
		}
		return err
	})
}

// again lets a failed write be tried anew a second later.
func (p *placer) again(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, ok := p.sent[uid]; ok {
		last.tried = p.now().Add(time.Second - resendAfter)
		p.sent[uid] = last
	}
}

// background does a write for the pod unless the same one is under way. A write
// that fails is logged: what it was for shows in the pods, so a later round sees
// that it is still due.
func (p *placer) background(ctx context.Context, what string, pod *cluster.Pod, do func(context.Context) error) {
	this := job{what, pod.UID}
	p.mu.Lock()
	busy := p.busy[this]
	p.busy[this] = true
	p.mu.Unlock()
	if busy {
		return
	}
	p.done.Go(func() {
		defer func() {
			p.mu.Lock()
			delete(p.busy, this)
			p.mu.Unlock()
		}()
		select {
		case p.slots <- struct{}{}:
			defer func() { <-p.slots }()
		case <-ctx.Done():
			return
		}
		if err := do(ctx); err != nil && ctx.Err() == nil {
			p.log.Warn(what+" a pod failed; it is tried again", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		}
	})
}

func (p *placer) write(ctx context.Context, pod *cluster.Pod, node, attempt string) error {
	switch {
	case node != "" && placed(pod, node):
		return p.writer.Wake(ctx, pod, attempt)
	case node == "" || !pod.Gated:
		return p.writer.Nominate(ctx, pod, node)
	case pod.Pinnable:
		return p.writer.Pin(ctx, pod, node)
	}
	if pod.Nominated != node {
		if err := p.writer.Nominate(ctx, pod, node); err != nil {
			return err
		}
	}
	return p.writer.Ungate(ctx, pod)
}

// forget drops what is remembered of pods that need no write any more.
func (p *placer) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid := range p.sent {
		if pod, ok := p.pods(uid); !ok || pod.Phase != gang.Pending {
			delete(p.sent, uid)
		}
	}
}
