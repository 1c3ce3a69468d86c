package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pin is required node affinity to one node by name, added to each term that
// the pod has already. kube-scheduler's NodeAffinity plugin then offers that node
// alone (PreFilter). It may be added while the pod is gated (KEP-3838) and cannot
// be taken back once the gate is gone.

func pinTo(node string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{
		Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
	}
}

// PinnedTerms are the pending pod's node selector terms with a pin to the node.
func (p *Pod) PinnedTerms(node string) []corev1.NodeSelectorTerm {
	var out []corev1.NodeSelectorTerm
	for _, term := range requiredTerms(p.object) {
		// A term without requirements matches nothing; with a pin it would match.
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			continue
		}
		term.MatchFields = append(slices.Clone(term.MatchFields), pinTo(node))
		out = append(out, term)
	}
	if out == nil {
		out = []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{pinTo(node)}}}
	}
	return out
}

// withoutPin is the pod as it was before it was pinned to the node. A pod that
// only claims to be pinned is returned as it is.
func withoutPin(pod *corev1.Pod, node string) *corev1.Pod {
	if requiredTerms(pod) == nil {
		return pod
	}
	out := pod.DeepCopy()
	var terms []corev1.NodeSelectorTerm
	for _, term := range requiredTerms(out) {
		if n := len(term.MatchFields); n > 0 && isPin(term.MatchFields[n-1], node) {
			term.MatchFields = term.MatchFields[:n-1]
		}
		if len(term.MatchExpressions)+len(term.MatchFields) > 0 {
			terms = append(terms, term)
		}
	}
	affinity := out.Spec.Affinity.NodeAffinity
	if terms == nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	} else {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = terms
	}
	return out
}

func isPin(r corev1.NodeSelectorRequirement, node string) bool {
	return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn && slices.Equal(r.Values, []string{node})
}

func requiredTerms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}
