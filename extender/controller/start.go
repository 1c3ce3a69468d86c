package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// order gives the gangs whose turn it may be, first come first.
func (c *Controller) order(r *round) []*cluster.Pending {
	var queue []*cluster.Pending
	for _, g := range r.view.Gangs {
		if g.Invalid != "" || !wantsPlace(r, g) {
			continue
		}
		rec := c.history.of(g.Key)
		if rec.worthwhile(r.now, g.Changes, r.view.Freed+c.released) {
			queue = append(queue, g)
		}
	}
	slices.SortFunc(queue, func(a, b *cluster.Pending) int {
		return gang.Compare(&a.Gang, &b.Gang, c.history.gangs[a.Key].lastFailed, c.history.gangs[b.Key].lastFailed)
	})
	return queue
}

// wantsPlace tells whether the gang has members that need a place and do not
// have one: those of a gang that is on its way already wait until it has started.
func wantsPlace(r *round, g *cluster.Pending) bool {
	res := r.held[g.Key]
	if res == nil {
		return !seated(g)
	}
	if res.Phase != reservation.Committed {
		return false
	}
	seated := map[string]bool{}
	for _, m := range res.Members {
		seated[m.UID] = true
	}
	without := false
	for _, m := range g.Members {
		switch {
		case m.Phase != gang.Pending:
		case seated[m.UID]:
			return false
		default:
			without = true
		}
	}
	return without
}

// seated tells whether a pending member had a place when the snapshot was taken. If
// the reservation has ended since, the gang's turn is in the next round.
func seated(g *cluster.Pending) bool {
	return slices.ContainsFunc(g.Members, func(m gang.Member) bool { return m.Phase == gang.Pending && m.Class < 0 })
}

// start plans one gang and reserves its room. It returns false if the store has
// changed under the snapshot, so that everything must be looked at anew.
func (c *Controller) start(ctx context.Context, r *round, g *cluster.Pending) bool {
	rec := c.history.of(g.Key)
	freed := r.view.Freed + c.released
	need := g.Need()
	old := r.held[g.Key]
	if why := waiting(g, &need, toCome(old)); why != nil {
		rec.refuse(r.now, why, g.Changes, freed)
		return true
	}
	in := r.intent(g, &need)
	if len(in.seats) == 0 {
		return true
	}
	// Room that is kept for pods to come is planned anew, with those that came.
	r.release(old)
	plan, why := c.place(r, g, in, rec)
	if plan == nil {
		r.retake(old)
		rec.refuse(r.now, why, g.Changes, freed)
		return true
	}
	res := c.reservation(r, g, in, plan)
	if len(res.Members) == 0 {
		r.retake(old)
		rec.refuse(r.now, surplusWaits(in), g.Changes, freed)
		return true
	}
	replaces := ""
	if old != nil {
		replaces = old.Attempt
	}
	outcome, err := c.store.Reserve(ctx, r.at, *res, c.hold(g), replaces)
	if err != nil {
		c.opts.Log.Warn("reserving failed; the gang is planned again", "gang", g.Key.String(), "error", err)
		r.retake(old)
		return true
	}
	if outcome.Result != reservation.ResultReserved {
		return false
	}
	r.assume(in, plan)
	r.at = outcome.Revision
	stored := outcome.Reservation
	r.held[g.Key] = stored
	rec.refused = nil
	if need.Missing == 0 {
		c.metrics.wait.Observe(r.now.Sub(newest(g)).Seconds())
		c.metrics.outcomes.WithLabelValues("reserved").Inc()
	}
	c.opts.Log.Info("reserved", "gang", g.Key.String(), "attempt", res.Attempt, "members", len(res.Members), "need", res.Need, "level", plan.Level, "domain", plan.Domain)
	// Carried out at once: kube-scheduler works on this gang while the next one
	// is planned.
	c.placer.place(ctx, stored)
	return true
}

func surplusWaits(in intent) *gang.Unschedulable {
	return &gang.Unschedulable{Code: gang.CodeRoom, Detail: fmt.Sprintf("the gang runs; there is no room for any of its %d members beyond the minimum", len(in.seats))}
}

func (c *Controller) hold(g *cluster.Pending) time.Duration {
	if g.Spec.StartTimeout > 0 {
		return g.Spec.StartTimeout
	}
	return c.opts.StartTimeout
}

func newest(g *cluster.Pending) time.Time {
	at := g.Created
	for _, m := range g.Members {
		if m.Phase == gang.Pending && m.Created.After(at) {
			at = m.Created
		}
	}
	return at
}
