package cluster

import (
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// nodeState is a node and what its pods take of it.
type nodeState struct {
	node     *corev1.Node
	capacity []amount
	used     map[string]int64 // by resource, of bound pods that are not terminal
}

func (n *nodeState) take(list []amount, sign int64) {
	for _, a := range list {
		n.used[a.resource] += sign * a.n
	}
}

// sameForPlanning tells whether the two make no difference to any plan, and
// sameDomains whether the domain tree built from them is the same.
func sameForPlanning(a, b *corev1.Node) bool {
	return a.Spec.Unschedulable == b.Spec.Unschedulable && isReady(a) == isReady(b) &&
		reflect.DeepEqual(a.Spec.Taints, b.Spec.Taints) &&
		sameDomains(a, b) && reflect.DeepEqual(capacityOf(a.Status.Allocatable), capacityOf(b.Status.Allocatable))
}

func sameDomains(a, b *corev1.Node) bool { return maps.Equal(a.Labels, b.Labels) }
