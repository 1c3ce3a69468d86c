package extender

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// offered checks the arguments of Filter and Prioritize.
func offered(args *extenderv1.ExtenderArgs) ([]string, error) {
	switch {
	case args.Pod == nil:
		return nil, badRequest{"Pod is missing"}
	case args.NodeNames != nil:
		return *args.NodeNames, nil
	case args.Nodes != nil:
		return nil, badRequest{"Nodes were sent instead of NodeNames: set nodeCacheCapable: true for this extender"}
	}
	return nil, badRequest{"NodeNames is missing"}
}

// elsewhere is the reason on the nodes after the first, where each needs one.
const elsewhere = "no place is reserved here"

// filter gives the one node that is reserved for the pod, if it was offered.
// Otherwise it gives none and a reason, which is put on the first node only: the
// pod's event shows each reason once, and nodes without one count as unresolvable.
// Where preemption may help, every node needs one to be a candidate.
func (h *handler) filter(_ context.Context, args *extenderv1.ExtenderArgs) (*extenderv1.ExtenderFilterResult, string, error) {
	names, err := offered(args)
	if err != nil {
		return nil, "", err
	}
	h.metrics.names.WithLabelValues("filter").Observe(float64(len(names)))
	seat, err := h.Seats.Seat(args.Pod)
	if fault := said(err); fault != "" {
		return &extenderv1.ExtenderFilterResult{Error: fault}, "error", nil
	}
	out := &extenderv1.ExtenderFilterResult{NodeNames: &[]string{}, FailedNodes: extenderv1.FailedNodesMap{}}
	switch {
	case seat.Any:
		out.NodeNames = &names
		return out, "any", nil
	case seat.Node != "" && slices.Contains(names, seat.Node):
		out.NodeNames = &[]string{seat.Node}
		return out, "reserved", nil
	case seat.Node != "":
		seat.Refusal, seat.Reason = "reserved node "+seat.Node+" not offered", "not_offered"
	}
	h.metrics.refusals.WithLabelValues(seat.Reason).Inc()
	if len(names) == 0 {
		return out, "refused", nil
	}
	if !seat.Resolvable {
		out.FailedAndUnresolvableNodes = extenderv1.FailedNodesMap{names[0]: seat.Refusal}
		return out, "refused", nil
	}
	for _, name := range names {
		out.FailedNodes[name] = elsewhere
	}
	out.FailedNodes[names[0]] = seat.Refusal
	return out, "refused", nil
}

// said is the text of a fault, which is part of the answer: kube-scheduler reads
// no other.
func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// prioritize gives all points to the reserved node. Pods that are none of ours are
// kept away from what gangs may want whole.
func (h *handler) prioritize(_ context.Context, args *extenderv1.ExtenderArgs) (extenderv1.HostPriorityList, string, error) {
	names, err := offered(args)
	if err != nil {
		return nil, "", err
	}
	h.metrics.names.WithLabelValues("prioritize").Observe(float64(len(names)))
	seat, err := h.Seats.Seat(args.Pod)
	result := "ok"
	if err != nil {
		result = "error" // kube-scheduler ignores it; Filter has the last word
	}
	scores := make([]int64, len(names))
	if err == nil && seat.Any {
		scores = h.Seats.Scores(names)
	}
	out := make(extenderv1.HostPriorityList, 0, len(names))
	for i, name := range names {
		if err == nil && name == seat.Node {
			scores[i] = extenderv1.MaxExtenderPriority
		}
		out = append(out, extenderv1.HostPriority{Host: name, Score: scores[i]})
	}
	return out, result, nil
}

// preempt vetoes evictions that leave half a gang. A member of a gang evicts
// nobody by itself: one member with room is of no use.
func (h *handler) preempt(_ context.Context, args *extenderv1.ExtenderPreemptionArgs) (*extenderv1.ExtenderPreemptionResult, string, error) {
	if args.Pod == nil {
		return nil, "", badRequest{"Pod is missing"}
	}
	victims := args.NodeNameToMetaVictims
	if victims == nil {
		victims = meta(args.NodeNameToVictims)
	}
	h.metrics.names.WithLabelValues("preempt").Observe(float64(len(victims)))
	out := &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{}}
	if h.Victims.Member(args.Pod) {
		return out, "vetoed", nil
	}
	for node, v := range victims {
		if v == nil || h.Victims.Breaks(uids(v)) {
			continue
		}
		out.NodeNameToMetaVictims[node] = v
	}
	if len(out.NodeNameToMetaVictims) < len(victims) {
		return out, "narrowed", nil
	}
	return out, "ok", nil
}

// meta gives victims by UID, as they are with nodeCacheCapable.
func meta(full map[string]*extenderv1.Victims) map[string]*extenderv1.MetaVictims {
	out := map[string]*extenderv1.MetaVictims{}
	for node, v := range full {
		if v == nil {
			continue
		}
		m := &extenderv1.MetaVictims{NumPDBViolations: v.NumPDBViolations}
		for _, pod := range v.Pods {
			if pod != nil {
				m.Pods = append(m.Pods, &extenderv1.MetaPod{UID: string(pod.UID)})
			}
		}
		out[node] = m
	}
	return out
}

func uids(v *extenderv1.MetaVictims) []types.UID {
	out := make([]types.UID, 0, len(v.Pods))
	for _, p := range v.Pods {
		if p != nil {
			out = append(out, types.UID(p.UID))
		}
	}
	return out
}

// bind waits for the pod's gang and binds the pod.
func (h *handler) bind(ctx context.Context, args *extenderv1.ExtenderBindingArgs) (*extenderv1.ExtenderBindingResult, string, error) {
	for _, part := range []struct{ name, value string }{
		{"PodName", args.PodName}, {"PodNamespace", args.PodNamespace}, {"PodUID", string(args.PodUID)}, {"Node", args.Node},
	} {
		if part.value == "" {
			return nil, "", badRequest{part.name + " is missing"}
		}
	}
	pod := PodRef{Namespace: args.PodNamespace, Name: args.PodName, UID: args.PodUID}
	if fault := said(h.Binder.Bind(ctx, pod, args.Node)); fault != "" {
		return &extenderv1.ExtenderBindingResult{Error: fault}, "error", nil
	}
	return &extenderv1.ExtenderBindingResult{}, "ok", nil
}
