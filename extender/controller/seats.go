package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/extender"
	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// Desk answers kube-scheduler's calls from what this replica knows: the mirror
// of the store and the state of the cluster. Any replica's desk will do. It
// implements extender.Seats, extender.Binder and extender.Victims.
type Desk struct {
	Cluster *cluster.Cluster
	Mirror  *reservation.Mirror
	Barrier *reservation.Barrier
	Writer  *Writer
}

// feedPatience is how long Filter waits for the news of a place that the pod was
// sent to: the feed brings it in about a millisecond.
const feedPatience = 50 * time.Millisecond

var errStoreAway = errors.New("the reservation store cannot be reached; try again")

// Seat tells where the pod may go.
func (d *Desk) Seat(pod *corev1.Pod) (extender.Seat, error) {
	held, ok := d.Mirror.Seat(string(pod.UID))
	if !ok && justPlaced(pod) && d.Mirror.Up() {
		// Another replica may have reserved just now.
		ctx, cancel := context.WithTimeout(context.Background(), feedPatience)
		defer cancel()
		held, ok = d.Mirror.AwaitSeat(ctx, string(pod.UID))
	}
	if ok {
		if held.Phase != reservation.Committed {
			if why := d.Cluster.Unusable(pod.UID, held.Node); why != "" {
				return refuse("unusable", fmt.Sprintf("gang %s: reserved node %s is no longer usable (%s); a new place is sought", held.Gang, held.Node, why)), nil
			}
		}
		return extender.Seat{Node: held.Node}, nil
	}
	key, single, invalid := d.Cluster.Ours(pod)
	switch {
	case key == (gang.Key{}):
		return extender.Seat{Any: true}, nil
	case !d.Mirror.Up():
		return extender.Seat{}, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, errStoreAway)
	case invalid != "":
		return refuse("invalid", "held: "+invalid), nil
	}
	seat := refuse("unplanned", "gang "+key.String()+": waits to be planned")
	if v, ok := d.Mirror.Verdict(key); ok {
		seat = refuse(v.Code, v.Text)
	}
	// A pod of its own may make room by preemption as without us; a gang's
	// members may not, one by one.
	seat.Resolvable = single
	return seat, nil
}

// Scores ranks nodes for pods that are none of ours.
func (d *Desk) Scores(nodes []string) []int64 { return d.Cluster.Scores(nodes) }

// justPlaced tells whether the pod was sent somewhere and has not been tried yet.
func justPlaced(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
			return false
		}
	}
	return pod.Status.NominatedNodeName != "" || pod.Annotations[v1alpha1.PinnedTo] != ""
}

func refuse(reason, text string) extender.Seat {
	return extender.Seat{Refusal: text, Reason: reason}
}

// Bind waits at the gang's barrier and binds the pod.
func (d *Desk) Bind(ctx context.Context, pod extender.PodRef, node string) error {
	held, ok := d.Mirror.Seat(string(pod.UID))
	if !ok {
		if p, known := d.Cluster.Pod(pod.UID); known && p.Node == node {
			return nil
		}
		return fmt.Errorf("pod %s/%s has no reservation any more; it is planned anew", pod.Namespace, pod.Name)
	}
	if held.Node != node {
		return fmt.Errorf("pod %s/%s is meant for node %s, not %s", pod.Namespace, pod.Name, held.Node, node)
	}
	result, err := d.Barrier.Wait(ctx, held.Gang, held.Attempt, string(pod.UID))
	if err != nil {
		return fmt.Errorf("gang %s: waiting for its members: %w", held.Gang, err)
	}
	if result.Outcome != reservation.WaitCommitted {
		return fmt.Errorf("gang %s did not start: %s", held.Gang, result)
	}
	return d.Writer.Bind(ctx, pod, node, bindAnnotations(held))
}

// Member tells whether the pod belongs to a gang of more than itself.
func (d *Desk) Member(pod *corev1.Pod) bool {
	key, single, _ := d.Cluster.Ours(pod)
	return key != (gang.Key{}) && !single
}

// Breaks tells whether losing the victims would leave a gang with some, but
// fewer members than it needs.
func (d *Desk) Breaks(victims []types.UID) bool {
	return d.Cluster.Breaks(victims)
}
