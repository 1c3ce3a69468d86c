package cluster

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// Verdict is how the GPUs that a pod was handed compare with what was foreseen.
type Verdict string

// The verdicts.
const (
	Foreseen   Verdict = "foreseen"   // one of the sets that were
	Unforeseen Verdict = "unforeseen" // another one, as good
	Better     Verdict = "better"
	Worse      Verdict = "worse"
)

// Handed is a pod with the GPUs that it was handed out, as its node reports them.
type Handed struct {
	Pod     *Pod
	GPUs    []int
	Ring    float64 // GB/s; 0 for one GPU
	Verdict Verdict
}

// foreseenOf reads what was foreseen for a bound pod; nil if nothing is known.
func foreseenOf(pod *corev1.Pod) *v1alpha1.PodPlacement {
	text := pod.Annotations[v1alpha1.Placement]
	if text == "" {
		return nil
	}
	p := &v1alpha1.PodPlacement{}
	if json.Unmarshal([]byte(text), p) != nil || len(p.GPUs) == 0 {
		return nil // somebody else wrote it
	}
	return p
}

// Handed gives the pods of which reports have told the GPUs since the last call.
func (c *Cluster) Handed() []Handed {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Handed
	for name := range c.unjudged {
		n, r := c.nodes[name], c.reports[name]
		if n == nil || r == nil || r.graph == nil {
			continue
		}
		for uid, p := range n.users {
			pod := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
			set, listed := r.held[pod]
			if !listed || c.gone[name][pod] || p.Foreseen == nil || n.judged[uid] || set&r.shared != 0 {
				continue
			}
			n.judged[uid] = true
			out = append(out, compare(p, set, c.tables.Table(r.graph).Ring(set)))
		}
	}
	clear(c.unjudged)
	slices.SortFunc(out, func(a, b Handed) int { return a.Pod.byAge(b.Pod) })
	return out
}

func compare(p *Pod, set topology.Set, ring float64) Handed {
	out := Handed{Pod: p, GPUs: set.GPUs(), Ring: ring, Verdict: Unforeseen}
	const rounding = 0.02 // of the annotation
	of := p.Foreseen
	named := slices.ContainsFunc(of.GPUs, func(gpus []int) bool { return slices.Equal(gpus, out.GPUs) })
	switch {
	case of.Ring != nil && ring < of.Ring.Worst-rounding:
		out.Verdict = Worse
	case of.Ring != nil && ring > of.Ring.Best+rounding:
		out.Verdict = Better
	case named || len(of.GPUs) >= v1alpha1.MaxPlacementSets:
		out.Verdict = Foreseen
	}
	return out
}
