package controller

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// bindAnnotations go to the pod with its binding.
func bindAnnotations(held reservation.Held) map[string]string {
	out := map[string]string{v1alpha1.Attempt: held.Attempt}
	p := v1alpha1.PodPlacement{Level: held.Level, Domain: held.Domain}
	if g := held.GPUs; g != nil {
		p.GPUs = g.Sets
		if g.Possible > 0 {
			p.Ring = &v1alpha1.PlacementRing{
				Worst: hundredths(g.Worst), Expected: hundredths(g.Expected), Best: hundredths(g.Best), Share: hundredths(g.Expected / g.Possible),
			}
		}
	}
	if text, err := json.Marshal(p); err == nil && p.Level != "" {
		out[v1alpha1.Placement] = string(text)
	}
	return out
}

func hundredths(v float64) float64 { return math.Round(v*100) / 100 }

// compareHanded counts how the GPUs that pods were handed out compare with what was
// foreseen for them, and tells the pods that got worse ones.
func (c *Controller) compareHanded() {
	for _, h := range c.cluster.Handed() {
		c.metrics.handed.WithLabelValues(string(h.Verdict)).Inc()
		if h.Verdict == cluster.Worse {
			c.warn(h.Pod, "GPUsWorseThanForeseen", fmt.Sprintf(
				"the device plugin on node %s handed out GPUs %v with a ring of %v GB/s; foreseen were %v with at least %v",
				h.Pod.Node, h.GPUs, hundredths(h.Ring), h.Pod.Foreseen.GPUs, h.Pod.Foreseen.Ring.Worst))
		}
	}
}
