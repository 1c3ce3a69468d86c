package cluster

import (
	"cmp"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// class is a gang.Class before it is tied to a snapshot: pods with the same
// requests and constraints share one, and which nodes they may use is worked out
// once per change of the nodes.
type class struct {
	key         string
	requests    []amount
	tolerations []corev1.Toleration
	affinity    nodeaffinity.RequiredNodeAffinity
	constrained bool // has node selector or affinity
	maxPerNode  int
	links       links

	pods int // pending pods of this class; at 0 it is forgotten

	// eligible and ineligible hold for the nodes' generation below.
	generation uint64
	eligible   []bool
	ineligible []gang.Count
}

// constraints is the part of a pod that makes its class, in a form with one
// spelling.
type constraints struct {
	Requests     []amountText         `json:"r"`
	NodeSelector map[string]string    `json:"s,omitempty"`
	NodeAffinity *corev1.NodeSelector `json:"a,omitempty"`
	Tolerations  []corev1.Toleration  `json:"t,omitempty"`
	MaxPerNode   int                  `json:"m,omitempty"`
	Links        string               `json:"l,omitempty"`
}

type amountText struct {
	Resource string `json:"r"`
	N        int64  `json:"n"`
}

// newClass reads the constraints of a pod that takes the requests.
func newClass(pod *corev1.Pod, requests []amount, l links) *class {
	c := constraints{
		NodeSelector: pod.Spec.NodeSelector, Tolerations: pod.Spec.Tolerations, MaxPerNode: maxPerNode(pod),
		Links: l.required.String() + "/" + l.preferred.String(),
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		c.NodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	for _, a := range requests {
		c.Requests = append(c.Requests, amountText{a.resource, a.n})
	}
	key, err := json.Marshal(c)
	if err != nil {
		panic("constraints are plain data: " + err.Error())
	}
	return &class{
		key: string(key), requests: requests, tolerations: pod.Spec.Tolerations,
		affinity:    nodeaffinity.GetRequiredNodeAffinity(pod),
		constrained: len(c.NodeSelector) > 0 || c.NodeAffinity != nil, maxPerNode: c.MaxPerNode, links: l,
	}
}

// maxPerNode is 1 for pods that can never share a node with their like: those
// with a host port, or with required anti-affinity by host to their own labels.
func maxPerNode(pod *corev1.Pod) int {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.HostPort > 0 {
				return 1
			}
		}
	}
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return 0
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname || len(term.Namespaces) > 0 || term.NamespaceSelector != nil {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			return 1
		}
	}
	return 0
}

// Reasons for which a node does not come into question, as shown to users.
const (
	cordoned    = "cordoned"
	notReady    = "not ready"
	tainted     = "tainted"
	notSelected = "not matched by node selector or affinity"
)

// excludes says why the node may not take a pod of the class, or "".
func (c *class) excludes(n *corev1.Node) string {
	switch {
	case n.Spec.Unschedulable && !c.tolerates(&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}):
		return cordoned
	case !isReady(n) && !c.tolerates(&corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}):
		return notReady
	}
	_, untolerated := schedcorev1.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, c.tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, false)
	if untolerated {
		return tainted
	}
	if c.constrained {
		// A selector that cannot be parsed matches no node, as in the scheduler.
		if ok, err := c.affinity.Match(n); err != nil || !ok {
			return notSelected
		}
	}
	return ""
}

func (c *class) tolerates(t *corev1.Taint) bool {
	return schedcorev1.TolerationsTolerateTaint(klog.Background(), c.tolerations, t, false)
}

func isReady(n *corev1.Node) bool {
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

// refresh works out which of the nodes, in the order of their numbers, are
// eligible at this generation of theirs.
func (c *class) refresh(generation uint64, nodes []*nodeState) {
	if c.eligible != nil && c.generation == generation {
		return
	}
	c.generation, c.eligible = generation, make([]bool, len(nodes))
	count := map[string]int{}
	for i, n := range nodes {
		if why := c.excludes(n.node); why != "" {
			count[why]++
		} else {
			c.eligible[i] = true
		}
	}
	c.ineligible = nil
	for reason, n := range count {
		c.ineligible = append(c.ineligible, gang.Count{Reason: reason, N: n})
	}
	slices.SortFunc(c.ineligible, func(a, b gang.Count) int { return cmp.Compare(a.Reason, b.Reason) })
}
