package controller

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/extender"
	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// leftBind is how long the callers of a committed gang's binds have before the
// controller binds in their place.
const leftBind = 3 * time.Second

// settle judges every reservation. It tells whether room was given back, which
// voids the snapshot.
func (c *Controller) settle(ctx context.Context, r *round) (freed bool) {
	pending := map[gang.Key]*cluster.Pending{}
	for _, g := range r.view.Gangs {
		pending[g.Key] = g
	}
	for _, key := range slices.SortedFunc(maps.Keys(r.held), gang.Key.Compare) {
		res := r.held[key]
		j := judge(res, c.evidence(ctx, r, res, pending[key]))
		ended, err := c.carryJudgement(ctx, r, res, j)
		if err != nil {
			c.opts.Log.Warn("ending a reservation failed; it is tried again", "gang", key.String(), "error", err)
		}
		if !ended {
			continue
		}
		delete(r.held, key)
		c.opts.Log.Info("reservation ended", "gang", key.String(), "attempt", res.Attempt, "why", j.why)
		if j.action == finish {
			c.metrics.outcomes.WithLabelValues("bound").Inc()
			continue
		}
		freed = true
		c.released++
		if j.action == abort || j.action == expire {
			c.lost(res, r.now, j)
		}
	}
	return freed
}

func (c *Controller) carryJudgement(ctx context.Context, r *round, res *reservation.Reservation, j judgement) (ended bool, err error) {
	switch j.action {
	case abort:
		return c.store.Abort(ctx, res.Gang, res.Attempt, j.why)
	case expire:
		return c.store.Expire(ctx, res.Gang, res.Attempt, j.why)
	case finish:
		return c.store.Finish(ctx, res.Gang, res.Attempt, r.view.Version)
	case drop:
		return c.store.Drop(ctx, res.Gang, res.Attempt, r.view.Version)
	}
	return false, nil
}

// lost notes that a gang lost its place before it could start.
func (c *Controller) lost(res *reservation.Reservation, now time.Time, j judgement) {
	rec := c.history.of(res.Gang)
	cause := "place_lost"
	if j.action == expire {
		cause = "timeout"
		c.metrics.outcomes.WithLabelValues("timeout").Inc()
	} else if len(j.exclude) > 0 {
		cause = "refused"
	}
	c.metrics.lost.WithLabelValues(cause).Inc()
	rec.refused = nil
	if j.blame {
		rec.failed(now, j.exclude)
	}
	for _, p := range c.cluster.Members(res.Gang) {
		if p.Phase == gang.Pending {
			c.warn(p, "GangLostPlace", message(res.Gang, p.Single, lostPlace(j.why, rec)))
			return // one member speaks for the gang
		}
	}
}

func (c *Controller) evidence(ctx context.Context, r *round, res *reservation.Reservation, g *cluster.Pending) evidence {
	var arrived map[string]bool // asked for once, and only when it matters
	e := evidence{
		now: r.now,
		pods: func(uid string) *cluster.Pod {
			p, ok := c.cluster.Pod(types.UID(uid))
			if !ok {
				return nil
			}
			return p
		},
		unusable:      func(uid, node string) string { return c.cluster.Unusable(types.UID(uid), node) },
		overcommitted: r.view.Overcommitted,
		placedAt:      c.placer.placedAt,
		arrived: func(uid string) bool {
			if arrived == nil {
				arrived = map[string]bool{}
				uids, err := c.store.Arrived(ctx, res.Gang, res.Attempt)
				if err != nil {
					return true // nothing is ended on a guess
				}
				for _, u := range uids {
					arrived[u] = true
				}
			}
			return arrived[uid]
		},
	}
	for _, p := range c.cluster.Members(res.Gang) {
		e.alive = e.alive || p.Phase == gang.Pending || p.Phase == gang.Bound
	}
	// What another replica reserved may be for pods that the watch has yet to show.
	e.alive = e.alive || r.view.Version < res.Seen
	if g != nil {
		need := g.Need()
		e.required = len(need.Required) + need.Missing
		for _, late := range placeholders(g, &need) {
			e.toCome += late.Members
		}
	}
	return e
}

// finishBinds binds members of committed gangs whose callers are gone: their
// scheduler or replica died between the commit and the bind.
func (c *Controller) finishBinds(ctx context.Context, r *round) {
	for _, res := range r.held {
		if res.Phase != reservation.Committed || r.now.Sub(c.mirror.CommittedAt(res.Gang)) < leftBind {
			continue
		}
		for _, m := range res.Members {
			pod, ok := c.cluster.Pod(types.UID(m.UID))
			if !ok || !m.Required || pod.Phase != gang.Pending || pod.Gated {
				continue
			}
			c.placer.background(ctx, "binding", pod, func(ctx context.Context) error {
				ref := extender.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
				return c.writer.Bind(ctx, ref, m.Node, bindAnnotations(reservation.Held{Attempt: res.Attempt, Level: res.Level, Domain: res.Domain, GPUs: m.GPUs}))
			})
		}
	}
}
