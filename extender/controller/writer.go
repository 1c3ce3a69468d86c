// Package controller carries gangs from created to bound: it plans them on the
// cluster as it is, reserves their room, and is the only writer to the API server.
package controller

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/extender"
	"github.com/lockstep-scheduler/lockstep/extender/cluster"
)

// fieldManager marks our writes in managedFields.
const fieldManager = "lockstep"

// Writer makes every write of ours to the API server. Each method is one call,
// and each names the pod's UID, so that a pod made again under the same name is
// never touched by a decision about the old one.
type Writer struct {
	client kubernetes.Interface
	writes *prometheus.CounterVec
	binds  chan struct{} // bounds the binds under way
}

// bindsAtOnce keeps a large gang's binds, which are all due at the same moment, on
// one HTTP/2 connection to the API server, which takes 100 streams.
const bindsAtOnce = 64

// NewWriter makes a Writer that counts its calls at the registerer.
func NewWriter(client kubernetes.Interface, reg prometheus.Registerer) *Writer {
	w := &Writer{client: client, binds: make(chan struct{}, bindsAtOnce), writes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_api_writes_total",
		Help: "Writes to the API server, by what they do and how they ended. What does Lockstep cost the API server?",
	}, []string{"write", "result"})}
	reg.MustRegister(w.writes)
	return w
}

func (w *Writer) count(write string, err error) {
	result := "ok"
	switch {
	case err == nil:
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		result = "outdated"
	default:
		result = "error"
	}
	w.writes.WithLabelValues(write, result).Inc()
}

// object is a JSON object of a patch.
type object map[string]any

func (w *Writer) patch(ctx context.Context, write string, p *cluster.Pod, kind types.PatchType, patch object, subresource ...string) error {
	meta, _ := patch["metadata"].(object)
	if meta == nil {
		meta = object{}
	}
	meta["uid"] = p.UID
	patch["metadata"] = meta
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("%s pod %s/%s: %w", write, p.Namespace, p.Name, err)
	}
	_, err = w.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, kind, body,
		metav1.PatchOptions{FieldManager: fieldManager}, subresource...)
	w.count(write, err)
	if err != nil {
		return fmt.Errorf("%s pod %s/%s: %w", write, p.Namespace, p.Name, err)
	}
	return nil
}

// Pin removes the pod's gate and ties it to the node, in one write. A gate is never
// added to a pod that exists, and only pods without gates of others are placed: so
// the list may go as a whole, by a merge patch, which costs the API server less
// than a strategic one.
func (w *Writer) Pin(ctx context.Context, p *cluster.Pod, node string) error {
	return w.patch(ctx, "pin", p, types.MergePatchType, object{
		"metadata": object{"annotations": object{v1alpha1.PinnedTo: node}},
		"spec": object{
			"schedulingGates": nil,
			"affinity": object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{
				"nodeSelectorTerms": p.PinnedTerms(node),
			}}},
		},
	})
}

// Wake makes kube-scheduler try a pod again that it has refused: any change of the
// pod does. The annotation is the one that the binding sets in the end.
func (w *Writer) Wake(ctx context.Context, p *cluster.Pod, attempt string) error {
	return w.patch(ctx, "wake", p, types.MergePatchType, object{"metadata": object{"annotations": object{v1alpha1.Attempt: attempt}}})
}

// Ungate removes the pod's gate.
func (w *Writer) Ungate(ctx context.Context, p *cluster.Pod) error {
	return w.patch(ctx, "ungate", p, types.MergePatchType, object{"spec": object{"schedulingGates": nil}})
}

// Nominate asks kube-scheduler to try the node first; an empty node takes an
// earlier nomination back.
func (w *Writer) Nominate(ctx context.Context, p *cluster.Pod, node string) error {
	var value any = node
	if node == "" {
		value = nil
	}
	return w.patch(ctx, "nominate", p, types.MergePatchType, object{"status": object{"nominatedNodeName": value}}, "status")
}

// Explain writes why the pod waits into its condition PodScheduled.
func (w *Writer) Explain(ctx context.Context, p *cluster.Pod, message string) error {
	reason := corev1.PodReasonUnschedulable
	if p.Gated {
		reason = corev1.PodReasonSchedulingGated
	}
	// Conditions are merged by type, so that those of others stay.
	return w.patch(ctx, "condition", p, types.StrategicMergePatchType, object{"status": object{"conditions": []object{{
		"type": corev1.PodScheduled, "status": corev1.ConditionFalse,
		"reason": reason, "message": message,
	}}}}, "status")
}

// Bind binds the pod to the node and leaves the annotations on it, in one write.
// A pod that is bound there already is a success: an earlier call may have
// succeeded and timed out on its way back.
func (w *Writer) Bind(ctx context.Context, pod extender.PodRef, node string, annotations map[string]string) error {
	w.binds <- struct{}{}
	defer func() { <-w.binds }()
	err := w.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: annotations},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) && w.boundTo(ctx, pod, node) {
		err = nil
	}
	w.count("bind", err)
	if err != nil {
		return fmt.Errorf("binding pod %s/%s to %s: %w", pod.Namespace, pod.Name, node, err)
	}
	return nil
}

func (w *Writer) boundTo(ctx context.Context, pod extender.PodRef, node string) bool {
	got, err := w.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	return err == nil && got.UID == pod.UID && got.Spec.NodeName == node
}

// Evict asks for the pod's eviction; disruption budgets hold.
func (w *Writer) Evict(ctx context.Context, p *cluster.Pod) error {
	err := w.client.CoreV1().Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
	})
	w.count("evict", err)
	if err != nil {
		return fmt.Errorf("evicting pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// Delete deletes a pod that was pinned to a node it cannot have, so that its
// controller makes a new one.
func (w *Writer) Delete(ctx context.Context, p *cluster.Pod) error {
	err := w.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *metav1.NewPreconditionDeleteOptions(string(p.UID)))
	w.count("delete", err)
	if err != nil {
		return fmt.Errorf("deleting pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}
