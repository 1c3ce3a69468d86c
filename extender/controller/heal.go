package controller

import (
	"context"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// heal looks after gangs that cannot help themselves: those that run below their
// minimum for too long, and those with members pinned to nodes they cannot have.
func (c *Controller) heal(ctx context.Context, r *round) {
	for _, g := range r.view.Gangs {
		if g.Invalid != "" {
			continue
		}
		rec := c.history.of(g.Key)
		c.dissolve(ctx, r, g, rec)
		if r.held[g.Key] == nil && !seated(g) {
			c.unpin(ctx, r, g, rec)
		}
	}
}

// dissolve evicts what is left of a gang that has been below its minimum for the
// grace: its GPUs do no work for it, and may work for others.
func (c *Controller) dissolve(ctx context.Context, r *round, g *cluster.Pending, rec *record) {
	switch {
	case !g.Broken():
		rec.broken = time.Time{}
		return
	case rec.broken.IsZero():
		rec.broken = r.now
		return
	case r.now.Sub(rec.broken) < c.opts.HealGrace:
		return
	}
	// A gang whose members are all on their way is about to be whole again.
	if res := r.held[g.Key]; res != nil && res.Phase == reservation.Committed && toCome(res) == 0 {
		return
	}
	need := g.Need()
	why := fmt.Sprintf("gang %s has been below its minimum for %s (%s); it is evicted as a whole, so that its room can be used", g.Key, c.opts.HealGrace, need.Text)
	for _, m := range g.Members {
		pod, ok := c.cluster.Pod(types.UID(m.UID))
		if !ok || m.Phase != gang.Bound {
			continue
		}
		c.placer.background(ctx, "evicting", pod, func(ctx context.Context) error {
			if err := c.writer.Evict(ctx, pod); err != nil {
				return err
			}
			c.warn(pod, "GangEvicted", why)
			return nil
		})
	}
}

// unpin frees a gang from pins that keep it from starting. A pin cannot be taken
// back, so the pods that have one are deleted for their controllers to make anew:
// first only those whose own pin has become impossible, and if that does not do,
// all that still wait. Nothing is deleted unless the gang fits then.
func (c *Controller) unpin(ctx context.Context, r *round, g *cluster.Pending, rec *record) {
	if rec.refused == nil || len(g.Unpinned) == 0 {
		return
	}
	need := g.Need()
	if need.Missing > 0 {
		return
	}
	for _, freed := range []map[string]gang.ClassID{c.hopeless(r, g, rec), g.Unpinned} {
		if len(freed) == 0 {
			continue
		}
		in := r.intent(g, &need)
		for i := range in.seats {
			if class, ok := freed[in.seats[i].UID]; ok {
				in.seats[i].Class = class
			}
		}
		if plan, _ := c.place(r, g, in, rec); plan == nil {
			continue
		}
		for uid := range freed {
			if pod, ok := c.cluster.Pod(types.UID(uid)); ok {
				c.replace(ctx, pod)
			}
		}
		return
	}
}

// hopeless are the pending members that are pinned to a node they cannot have.
func (c *Controller) hopeless(r *round, g *cluster.Pending, rec *record) map[string]gang.ClassID {
	out := maps.Clone(g.Unpinned)
	for uid := range g.Unpinned {
		pod, ok := c.cluster.Pod(types.UID(uid))
		if !ok {
			delete(out, uid)
			continue
		}
		if !rec.excludes(pod.Pinned, r.now) && c.cluster.Unusable(pod.UID, pod.Pinned) == "" {
			delete(out, uid)
		}
	}
	return out
}

func (c *Controller) replace(ctx context.Context, pod *cluster.Pod) {
	c.placer.background(ctx, "replacing", pod, func(ctx context.Context) error {
		if err := c.writer.Delete(ctx, pod); err != nil {
			return err
		}
		c.warn(pod, "GangMemberReplaced",
			fmt.Sprintf("the pod was tied to node %s, which it cannot have any more; it is deleted so that its controller makes a new one", pod.Pinned))
		return nil
	})
}
