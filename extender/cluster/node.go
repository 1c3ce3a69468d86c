package cluster

import (
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// nodeState is a node and what its pods take of it.
type nodeState struct {
	node     *corev1.Node
	capacity []amount
	used     map[string]int64   // by resource, of bound pods that are not terminal
	users    map[types.UID]*Pod // with GPUs
	judged   map[types.UID]bool // of users: what they were handed was compared
	gpus     *gang.NodeGPUs     // by the node's report; nil: to be computed
}

func newNodeState(n *corev1.Node) *nodeState {
	return &nodeState{node: n, capacity: capacityOf(n.Status.Allocatable), used: map[string]int64{}, users: map[types.UID]*Pod{}, judged: map[types.UID]bool{}}
}

// take notes a pod that occupies the node, leave that it does not any more. gpu is
// the name of the GPU resource.
func (n *nodeState) take(p *Pod, gpu string) {
	for _, a := range p.requests {
		n.used[a.resource] += a.n
	}
	if amountOf(p.requests, gpu) > 0 {
		n.users[p.UID] = p
	}
}

func (n *nodeState) leave(p *Pod) {
	for _, a := range p.requests {
		n.used[a.resource] -= a.n
	}
	delete(n.users, p.UID)
}

// sameForPlanning tells whether the two make no difference to any plan, and
// sameDomains whether the domain tree built from them is the same.
func sameForPlanning(a, b *corev1.Node) bool {
	return a.Spec.Unschedulable == b.Spec.Unschedulable && isReady(a) == isReady(b) &&
		reflect.DeepEqual(a.Spec.Taints, b.Spec.Taints) &&
		sameDomains(a, b) && reflect.DeepEqual(capacityOf(a.Status.Allocatable), capacityOf(b.Status.Allocatable))
}

func sameDomains(a, b *corev1.Node) bool { return maps.Equal(a.Labels, b.Labels) }
