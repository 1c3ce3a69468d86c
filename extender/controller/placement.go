package controller

import (
	"encoding/json"
	"math"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// placement is what the annotation v1alpha1.Placement says. Rings are in GB/s and one
// direction; Share is of the expected ring in the best that the node has.
type placement struct {
	Level  string  `json:"level,omitempty"`
	Domain string  `json:"domain,omitempty"`
	GPUs   [][]int `json:"gpus,omitempty"`
	Ring   *ring   `json:"ring,omitempty"`
}

type ring struct {
	Worst    float64 `json:"worst"`
	Expected float64 `json:"expected"`
	Best     float64 `json:"best"`
	Share    float64 `json:"share"`
}

// bindAnnotations go to the pod with its binding.
func bindAnnotations(held reservation.Held) map[string]string {
	out := map[string]string{v1alpha1.Attempt: held.Attempt}
	p := placement{Level: held.Level, Domain: held.Domain}
	if g := held.GPUs; g != nil {
		p.GPUs = g.Sets
		if g.Possible > 0 {
			p.Ring = &ring{hundredths(g.Worst), hundredths(g.Expected), hundredths(g.Best), hundredths(g.Expected / g.Possible)}
		}
	}
	if text, err := json.Marshal(p); err == nil && p.Level != "" {
		out[v1alpha1.Placement] = string(text)
	}
	return out
}

func hundredths(v float64) float64 { return math.Round(v*100) / 100 }
