package controller

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/events"

	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// Options of a Controller.
type Options struct {
	// Identity of this replica, unique among them.
	Identity string
	// StartTimeout is how long a gang may hold room that it does not use yet,
	// unless it says so itself.
	StartTimeout time.Duration
	// HealGrace is how long a running gang may be below its minimum before it is
	// evicted as a whole.
	HealGrace time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// NewAttempt names a reservation, uniquely; nil: random names.
	NewAttempt func() string
	Log        *slog.Logger
}

// Controller is the loop that brings gangs from created to bound. Every replica
// runs one. A lease keeps all but one of them idle to save work; correctness
// does not depend on it: reservations are compared and set, writes name UIDs.
type Controller struct {
	opts    Options
	cluster *cluster.Cluster
	store   *reservation.Store
	mirror  *reservation.Mirror
	writer  *Writer
	events  events.EventRecorder
	metrics *metrics
	placer  *placer
	history history
	planner gang.Planner
	leads   bool
	leased  time.Time // when the lease was last taken or renewed
	// released grows with each reservation given up: there may be more room.
	released uint64
}

// Rounds follow each other at least this far apart, so that a burst of events
// costs one round, and at most this far, so that time-outs are seen. A round that
// takes long is followed by a pause as many times as long as restFactor says.
const (
	minRound   = 10 * time.Millisecond
	maxRound   = time.Second
	restFactor = 10
	leaseFor   = 5 * time.Second
	// controllerLease is the name of the lease.
	controllerLease = "controller"
	// writesAtOnce bounds the writes under way to the API server.
	writesAtOnce = 32
)

// New makes a Controller.
func New(o Options, c *cluster.Cluster, s *reservation.Store, m *reservation.Mirror, w *Writer, e events.EventRecorder, reg Registerer) *Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewAttempt == nil {
		o.NewAttempt = func() string { return string(uuid.NewUUID()) }
	}
	return &Controller{
		opts: o, cluster: c, store: s, mirror: m, writer: w, events: e, metrics: newMetrics(reg),
		placer: &placer{
			writer: w, pods: c.Pod, now: o.Now, log: o.Log,
			slots: make(chan struct{}, writesAtOnce), sent: map[types.UID]sent{}, busy: map[job]bool{},
		},
		history: history{gangs: map[gang.Key]*record{}},
	}
}

// Run makes rounds until ctx ends: after changes of the cluster or the store, and
// once in maxRound without any.
func (c *Controller) Run(ctx context.Context) {
	tick := time.NewTicker(maxRound)
	defer tick.Stop()
	defer c.resign(context.WithoutCancel(ctx))
	defer c.placer.done.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-c.cluster.Changed():
		case <-c.mirror.Changed():
		}
		started := time.Now()
		for again := true; again && ctx.Err() == nil; {
			again = c.lead(ctx) && c.Round(ctx)
		}
		if !c.leads {
			c.cluster.Handed() // the replica that plans counts them
		}
		rest := min(max(minRound, restFactor*time.Since(started)), maxRound/4)
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
	}
}

// lead takes or renews the lease.
func (c *Controller) lead(ctx context.Context) bool {
	now := c.opts.Now()
	if c.leads && now.Sub(c.leased) < leaseFor/4 {
		return true
	}
	ok, err := c.store.Lease(ctx, controllerLease, c.opts.Identity, leaseFor)
	if err != nil {
		c.opts.Log.Warn("taking the controller's lease failed", "error", err)
		ok = false
	}
	if ok && !c.leads {
		c.history = history{gangs: map[gang.Key]*record{}}
		c.opts.Log.Info("this replica plans now", "identity", c.opts.Identity)
	}
	c.leads, c.leased = ok, now
	return ok
}

// resign gives the lease back, so that another replica need not wait until it
// has run out.
func (c *Controller) resign(ctx context.Context) {
	if !c.leads {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := c.store.Resign(ctx, controllerLease, c.opts.Identity); err != nil {
		c.opts.Log.Warn("giving the controller's lease back failed; it runs out by itself", "error", err)
	}
	c.leads = false
}

// round is what the phases of one round share.
type round struct {
	now  time.Time
	at   reservation.Revision
	held map[gang.Key]*reservation.Reservation
	view *cluster.View
}

// Round makes one round. It tells whether another should follow at once, since
// the store was changed in a way that voids the snapshot.
func (c *Controller) Round(ctx context.Context) (again bool) {
	started := c.opts.Now()
	defer func() { c.metrics.round.Observe(c.opts.Now().Sub(started).Seconds()) }()

	// 1. Snapshot: the store first, so that what it says of bound pods is not
	// newer than what the cluster knows of them.
	r := c.snapshot()
	if r == nil {
		return false
	}
	// 2. Settle what is reserved: give up places that cannot be used, and forget
	// reservations that have served.
	if c.settle(ctx, r) {
		return true
	}
	// 3. Order the gangs that want a place.
	queue := c.order(r)
	// 4. Plan and reserve, one gang after the other.
	for _, g := range queue {
		if !c.start(ctx, r, g) {
			return true
		}
	}
	// 5. Carry reservations out: pin or nominate, then ungate; finish binds that
	// their callers left.
	c.carryOut(ctx, r)
	// 6. Heal: evict gangs that stayed below their minimum, free members from
	// pins that cannot be.
	c.heal(ctx, r)
	// 7. Explain what waits, and compare what pods got with what was foreseen.
	c.explain(ctx, r)
	c.compareHanded()
	return false
}

func (c *Controller) snapshot() *round {
	state := c.mirror.State()
	if !state.Synced {
		return nil
	}
	r := &round{now: c.opts.Now(), at: state.Revision, held: map[gang.Key]*reservation.Reservation{}}
	var claims []cluster.Claim
	for _, res := range state.Reservations {
		r.held[res.Gang] = res
		first := len(claims)
		for _, requests := range res.Requests {
			claims = append(claims, cluster.Claim{Requests: requests})
		}
		for _, m := range res.Members {
			claim := &claims[first+m.Request]
			claim.Holds = append(claim.Holds, cluster.Hold{UID: types.UID(m.UID), Node: m.Node})
		}
	}
	r.view = c.cluster.View(claims, r.now)
	// A pod that another replica saw bound, and whose reservation it therefore
	// removed, must be seen bound here too before its room is counted.
	if r.view.Version < state.AsOf {
		c.opts.Log.Debug("the watch lags behind the store", "version", r.view.Version, "want", state.AsOf)
		return nil
	}
	return r
}

// carryOut makes pods what their reservations want them to be.
func (c *Controller) carryOut(ctx context.Context, r *round) {
	for _, g := range r.view.Gangs {
		if res := r.held[g.Key]; res != nil {
			c.placer.place(ctx, res)
			continue
		}
		if g.Single {
			continue // kube-scheduler nominates it when it preempts for it
		}
		for _, m := range g.Members {
			if pod, ok := c.cluster.Pod(types.UID(m.UID)); ok {
				c.placer.unplace(ctx, pod)
			}
		}
	}
	c.finishBinds(ctx, r)
	c.placer.forget()
}
