package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/gang"
)

func container(name string, requests map[string]string) corev1.Container {
	list := corev1.ResourceList{}
	for r, q := range requests {
		list[corev1.ResourceName(r)] = resource.MustParse(q)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: list}}
}

// A pod takes what kube-scheduler thinks that it takes.
func TestRequestsAsTheSchedulerCountsThem(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container("proxy", map[string]string{"cpu": "500m", "memory": "1Gi"})
	sidecar.RestartPolicy = &always
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{sidecar, container("fetch", map[string]string{"cpu": "6", "memory": "1Gi"})},
		Containers: []corev1.Container{
			container("a", map[string]string{"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "8"}),
			container("b", map[string]string{"cpu": "1", "lockstep.scheduler/member": "1"}),
		},
		Overhead: corev1.ResourceList{"memory": resource.MustParse("256Mi")},
	}}
	got := asMap(readPod(pod, "nvidia.com/gpu").requests)
	// cpu: the init container beside the sidecar (6.5) is more than the sum (3.5).
	want := map[string]int64{"cpu": 6500, "memory": (5 << 30) + (256 << 20), "nvidia.com/gpu": 8, "pods": 1}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for r, n := range want {
		if got[r] != n {
			t.Errorf("%s: got %d, want %d", r, got[r], n)
		}
	}
}

func TestPhases(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		phase    corev1.PodPhase
		node     string
		deleting bool
		want     gang.Phase
		occupies bool
	}{
		"pending":              {corev1.PodPending, "", false, gang.Pending, false},
		"deleted while gated":  {corev1.PodPending, "", true, gang.Gone, false},
		"bound":                {corev1.PodPending, "n1", false, gang.Bound, true},
		"running":              {corev1.PodRunning, "n1", false, gang.Bound, true},
		"terminating":          {corev1.PodRunning, "n1", true, gang.Gone, true},
		"succeeded":            {corev1.PodSucceeded, "n1", false, gang.Succeeded, false},
		"succeeded, deleting":  {corev1.PodSucceeded, "n1", true, gang.Succeeded, false},
		"failed":               {corev1.PodFailed, "n1", false, gang.Gone, false},
		"unknown keeps a node": {corev1.PodUnknown, "n1", false, gang.Bound, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: tc.node}, Status: corev1.PodStatus{Phase: tc.phase}}
			if tc.deleting {
				pod.DeletionTimestamp = &now
			}
			if p := readPod(pod, "nvidia.com/gpu"); p.Phase != tc.want || p.occupies != tc.occupies {
				t.Errorf("got phase %v, occupies %v; want %v, %v", p.Phase, p.occupies, tc.want, tc.occupies)
			}
		})
	}
}
