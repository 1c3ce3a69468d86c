package extender

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// operation is one step of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// admit marks gang members as deploy/manifests/admission-policy.yaml does, for
// clusters that have no such policies. It never refuses a pod: what is wrong with
// one is told later, in an event.
func (h *handler) admit(_ context.Context, review *admissionv1.AdmissionReview) (*admissionv1.AdmissionReview, string, error) {
	if review.Request == nil {
		return nil, "", badRequest{"request is missing"}
	}
	out := &admissionv1.AdmissionReview{
		TypeMeta: review.TypeMeta,
		Response: &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true},
	}
	var pod corev1.Pod
	if err := json.Unmarshal(review.Request.Object.Raw, &pod); err != nil {
		return nil, "", badRequest{"request.object is not a pod: " + err.Error()}
	}
	patch := mark(&pod)
	if len(patch) == 0 {
		return out, "unchanged", nil
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, "", fmt.Errorf("encoding the patch: %w", err)
	}
	kind := admissionv1.PatchTypeJSONPatch
	out.Response.Patch, out.Response.PatchType = body, &kind
	return out, "marked", nil
}

// mark gives what a pod lacks to be held with its gang; nothing for pods without
// keys of ours, and for those that are bound already.
func mark(pod *corev1.Pod) []operation {
	if !hasKeyOfOurs(pod.Annotations) && !hasKeyOfOurs(pod.Labels) || pod.Spec.NodeName != "" || len(pod.Spec.Containers) == 0 {
		return nil
	}
	var out []operation
	gate := corev1.PodSchedulingGate{Name: v1alpha1.Gate}
	switch {
	case slices.Contains(pod.Spec.SchedulingGates, gate):
	case len(pod.Spec.SchedulingGates) == 0:
		out = append(out, operation{"add", "/spec/schedulingGates", []corev1.PodSchedulingGate{gate}})
	default:
		out = append(out, operation{"add", "/spec/schedulingGates/-", gate})
	}
	resources := pod.Spec.Containers[0].Resources.DeepCopy()
	one := resource.MustParse("1")
	changed := false
	for _, list := range []*corev1.ResourceList{&resources.Requests, &resources.Limits} {
		if have, ok := (*list)[v1alpha1.MemberResource]; ok && have.Equal(one) {
			continue
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[v1alpha1.MemberResource] = one
		changed = true
	}
	if changed {
		out = append(out, operation{"add", "/spec/containers/0/resources", resources})
	}
	return out
}

// hasKeyOfOurs tells whether a user has set a key under our prefix, known or not.
func hasKeyOfOurs(keys map[string]string) bool {
	for key := range maps.Keys(keys) {
		if strings.HasPrefix(key, v1alpha1.Group+"/") && !slices.Contains(v1alpha1.OwnKeys, key) {
			return true
		}
	}
	return false
}
