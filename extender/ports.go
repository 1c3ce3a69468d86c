// Package extender is the HTTP face of Lockstep towards kube-scheduler: it
// decodes a request, looks the answer up and encodes it. It decides nothing.
package extender

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Seat is what is known about a pod's place right now. Exactly one of Any, Node
// and Refusal is set.
type Seat struct {
	// Any: the pod is none of ours; every offered node will do.
	Any bool
	// Node is the one node reserved for the pod.
	Node string
	// Refusal says why no node is reserved: stable from call to call, under 1 kB.
	Refusal string
	// Resolvable: evicting pods could help, so kube-scheduler may try preemption.
	Resolvable bool
	// Reason is the refusal's short code for metrics, from a bounded set.
	Reason string
}

// Seats answers Filter and Prioritize from memory. An error is a fault (the
// store cannot be reached), which kube-scheduler retries with back-off.
type Seats interface {
	Seat(pod *corev1.Pod) (Seat, error)
	// Scores ranks the nodes, 0 to 10, for a pod that is none of ours.
	Scores(nodes []string) []int64
}

// PodRef names one incarnation of a pod.
type PodRef struct {
	Namespace, Name string
	UID             types.UID
}

// Binder binds a pod once its whole gang may start.
type Binder interface {
	// Bind blocks until the pod's gang is committed, then binds the pod to the
	// node. A pod that is bound there already is a success.
	Bind(ctx context.Context, pod PodRef, node string) error
}

// Victims answers preemption.
type Victims interface {
	// Member tells whether the pod is a member of a gang (of more than one).
	Member(pod *corev1.Pod) bool
	// Breaks tells whether losing all these pods would leave some gang with some
	// but fewer members than its minimum.
	Breaks(victims []types.UID) bool
}
