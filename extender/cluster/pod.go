package cluster

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/gang"
)

// Pod is what the cluster remembers of a pod. It is immutable but for its class:
// an update of the pod makes a new one.
type Pod struct {
	UID       types.UID
	Namespace string
	Name      string
	Owner     types.UID // of the controlling owner; empty for a bare pod
	Key       gang.Key  // zero: neither a gang member nor a GPU pod
	Single    bool      // Key is that of a gang of one
	Phase     gang.Phase
	Node      string // where it is bound

	Gated     bool   // waits for our own gate
	Pinned    string // the node to which we pinned it
	Pinnable  bool   // may be pinned: has a controller, and the planner models all its constraints
	Nominated string // status.nominatedNodeName
	Refused   string // why kube-scheduler refused it last; empty: it did not
	Message   string // of the condition PodScheduled while it is false

	// Foreseen is which GPUs were expected for a bound pod; nil: not known.
	Foreseen *v1alpha1.PodPlacement

	created    time.Time
	priority   int32
	rank       int
	occupies   bool // takes room on its node: bound and not terminal, even while terminating
	requests   []amount
	membership *membership
	links      links
	bad        *badInput
	foreign    []string // gates of others, which keep the pod from being planned

	object *corev1.Pod // of pending pods of ours and of bound gang members, to read the class from
	class  *class      // read on first use, under the cluster's lock
}

// occupying tells whether there is a pod and it takes room, and ours whether it is
// one that we plan.
func (p *Pod) occupying() bool { return p != nil && p.occupies }

func (p *Pod) ours() bool { return p != nil && p.Key != gang.Key{} }

// byAge orders pods by creation, then name, then UID.
func (p *Pod) byAge(q *Pod) int {
	return cmp.Or(p.created.Compare(q.created), cmp.Compare(p.Name, q.Name), cmp.Compare(p.UID, q.UID))
}

func (p *Pod) member(id gang.ClassID) gang.Member {
	role := ""
	if p.membership != nil {
		role = p.membership.role
	}
	return gang.Member{
		UID: string(p.UID), Name: p.Name, Role: role, Owner: string(p.Owner), Rank: p.rank,
		Class: id, Phase: p.Phase, Node: p.Node, Created: p.created,
	}
}

// readPod derives the state of a pod. gpu is the name of the GPU resource.
func readPod(pod *corev1.Pod, gpu corev1.ResourceName) *Pod {
	p := &Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, created: pod.CreationTimestamp.Time,
		priority: schedcorev1.PodPriority(pod), Node: pod.Spec.NodeName, rank: rankOf(pod),
		Nominated: pod.Status.NominatedNodeName,
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		p.Owner = owner.UID
	}
	p.readPhase(pod)
	p.requests = amountsOf(resource.PodRequests(pod, resource.PodResourcesOptions{}))
	p.readMembership(pod, gpu)
	if p.Phase == gang.Bound {
		p.Foreseen = foreseenOf(pod)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			p.Message = c.Message
			if c.Reason == corev1.PodReasonUnschedulable && !p.Gated {
				p.Refused = c.Message
			}
		}
	}
	if p.Phase == gang.Pending && p.Key != (gang.Key{}) || p.Phase == gang.Bound && p.membership != nil {
		p.object = pod
	}
	return p
}

func (p *Pod) readPhase(pod *corev1.Pod) {
	terminal := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	p.occupies = p.Node != "" && !terminal
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		p.Phase = gang.Succeeded
	case pod.Status.Phase == corev1.PodFailed || pod.DeletionTimestamp != nil:
		p.Phase = gang.Gone
	case p.Node != "":
		p.Phase = gang.Bound
	default:
		p.Phase = gang.Pending
	}
}

// readMembership reads which gang the pod belongs to, and what holds it back. A
// pod with our gate that names no gang is a mistake: nobody would ever take the
// gate away.
func (p *Pod) readMembership(pod *corev1.Pod, gpu corev1.ResourceName) {
	for _, gate := range pod.Spec.SchedulingGates {
		if gate.Name == v1alpha1.Gate {
			p.Gated = true
		} else {
			p.foreign = append(p.foreign, gate.Name)
		}
	}
	slices.Sort(p.foreign)
	p.Pinned = pod.Annotations[v1alpha1.PinnedTo]
	p.Pinnable = p.Owner != "" && simple(pod)

	p.membership, p.bad = parseMembership(pod)
	linked, badLink := parseLinks(ours(pod), amountOf(p.requests, string(gpu)))
	if p.links = linked; p.bad == nil {
		p.bad = badLink
	}
	if p.membership == nil && p.bad == nil && p.Gated && amountOf(p.requests, string(gpu)) == 0 {
		p.bad = &badInput{v1alpha1.Gang, "", "the pod has the scheduling gate " + v1alpha1.Gate + " and names no gang"}
	}
	switch {
	case p.membership != nil:
		p.Key = gang.Key{Namespace: pod.Namespace, Name: p.membership.gang}
	case p.bad != nil || amountOf(p.requests, string(gpu)) > 0:
		p.Key, p.Single = SingleKey(pod.Namespace, pod.Name), true
	}
}

// SingleKey is the key of a pod without a gang. A gang's name has no colon in
// it, so the two never meet.
func SingleKey(namespace, pod string) gang.Key {
	return gang.Key{Namespace: namespace, Name: "pod:" + pod}
}

// rankLabels carry a pod's position among its siblings.
var rankLabels = []string{
	"batch.kubernetes.io/job-completion-index",
	"training.kubeflow.org/replica-index",
	"leaderworkerset.sigs.k8s.io/worker-index",
	"apps.kubernetes.io/pod-index",
}

func rankOf(pod *corev1.Pod) int {
	for _, key := range rankLabels {
		for _, from := range []map[string]string{pod.Labels, pod.Annotations} {
			if n, err := strconv.Atoi(from[key]); err == nil && n >= 0 {
				return n
			}
		}
	}
	return -1
}

// simple tells whether the planner models everything that could keep the pod
// from a node: nothing but resources, taints, node selection and spreading over
// hosts. Only such pods are pinned: the scheduler's other plugins may refuse the
// rest where they were planned, and a pin cannot be taken back.
func simple(pod *corev1.Pod) bool {
	if len(pod.Spec.TopologySpreadConstraints) > 0 || len(pod.Spec.ResourceClaims) > 0 {
		return false
	}
	if a := pod.Spec.Affinity; a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil) {
		return false
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return false
		}
	}
	return true
}
