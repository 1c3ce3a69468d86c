package extender

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

func TestAdmission(t *testing.T) {
	gang := map[string]string{v1alpha1.Gang: "g"}
	cases := []struct {
		name   string
		change func(*corev1.Pod)
		marked bool
	}{
		{"no keys", func(*corev1.Pod) {}, false},
		{"annotation", func(p *corev1.Pod) { p.Annotations = gang }, true},
		{"label", func(p *corev1.Pod) { p.Labels = gang }, true},
		{"misspelt key", func(p *corev1.Pod) { p.Annotations = map[string]string{"lockstep.scheduler/gagn": "g"} }, true},
		{"only what we write", func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.PinnedTo: "n", v1alpha1.Attempt: "a"}
		}, false},
		{"bound already", func(p *corev1.Pod) { p.Annotations, p.Spec.NodeName = gang, "n1" }, false},
		{"gates of others", func(p *corev1.Pod) {
			p.Annotations, p.Spec.SchedulingGates = gang, []corev1.PodSchedulingGate{{Name: "other"}}
		}, true},
		{"marked already", func(p *corev1.Pod) {
			p.Annotations, p.Spec.SchedulingGates = gang, []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}}
			one := corev1.ResourceList{v1alpha1.MemberResource: resource.MustParse("1")}
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
		}, true},
		{"no containers", func(p *corev1.Pod) { p.Annotations, p.Spec.Containers = gang, nil }, false},
	}
	h, _ := newHandler(t, &desk{})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "a", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}}}, {Name: "b"},
			}}}
			c.change(pod)
			got := admitted(t, h, pod)
			gates := 0
			for _, g := range got.Spec.SchedulingGates {
				if g.Name == v1alpha1.Gate {
					gates++
				}
			}
			want := 0
			if c.marked {
				want = 1
			}
			if gates != want || len(got.Spec.SchedulingGates) < len(pod.Spec.SchedulingGates) {
				t.Errorf("gates %v", got.Spec.SchedulingGates)
			}
			for i := range got.Spec.Containers {
				for _, list := range []corev1.ResourceList{got.Spec.Containers[i].Resources.Requests, got.Spec.Containers[i].Resources.Limits} {
					q := list[v1alpha1.MemberResource]
					if n := q.Value(); (i == 0 && n != int64(want)) || (i > 0 && n != 0) {
						t.Errorf("container %d asks for %d of %s", i, n, v1alpha1.MemberResource)
					}
				}
			}
			if c.name != "marked already" && len(got.Spec.Containers) > 0 {
				if q := got.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"]; q.Value() != 8 {
					t.Error("other limits were lost")
				}
			}
			if again := admitted(t, h, got); len(again.Spec.SchedulingGates) != len(got.Spec.SchedulingGates) {
				t.Errorf("the second time adds gates: %v", again.Spec.SchedulingGates)
			}
		})
	}
}

// admitted is the pod as the webhook leaves it.
func admitted(t *testing.T, h http.Handler, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request:  &admissionv1.AdmissionRequest{UID: "u"},
	}
	review.Request.Object.Raw = raw
	body, err := json.Marshal(review)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/admission/pods", strings.NewReader(string(body))))
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || out.Response == nil {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if !out.Response.Allowed || out.Response.UID != "u" || out.Kind != "AdmissionReview" {
		t.Fatalf("got %+v", out)
	}
	if out.Response.Patch == nil {
		return pod
	}
	patch, err := jsonpatch.DecodePatch(out.Response.Patch)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = patch.Apply(raw); err != nil {
		t.Fatal(err)
	}
	got := &corev1.Pod{}
	if err := json.Unmarshal(raw, got); err != nil {
		t.Fatal(err)
	}
	return got
}

func FuzzAdmission(f *testing.F) {
	f.Add([]byte(`{"request":{"uid":"u","object":{"metadata":{"annotations":{"lockstep.scheduler/gang":"g"}},"spec":{"containers":[{}]}}}}`))
	f.Add([]byte(`{"request":{"object":null}}`))
	h, _ := newHandler(f, &desk{})
	f.Fuzz(func(t *testing.T, body []byte) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/admission/pods", strings.NewReader(string(body))))
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
