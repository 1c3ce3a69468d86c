package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/test/stack"
)

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

// TestCase_J4_BadInputIsHeldAndNamed: whoever writes a key of ours wrongly gets an
// event with key and value, the pod is held, and nobody else notices.
func TestCase_J4_BadInputIsHeldAndNamed(t *testing.T) {
	s := shared.begin(t)
	bad := []struct {
		name        string
		annotations map[string]string
		labels      map[string]string
		says        []string
	}{
		{"letters", map[string]string{v1alpha1.MinMember: "abc"}, nil, []string{v1alpha1.MinMember, `"abc"`}},
		{"blanks", map[string]string{v1alpha1.MinMember: " 4 "}, nil, []string{v1alpha1.MinMember, `" 4 "`}},
		{"zero", map[string]string{v1alpha1.MinMember: "0"}, nil, []string{v1alpha1.MinMember, `"0"`}},
		{"typo", map[string]string{"lockstep.scheduler/gang-min-member": "4"}, nil, []string{"lockstep.scheduler/gang-min-member", "min-member?"}},
		{"level", map[string]string{v1alpha1.TopologyRequired: "requierd"}, nil, []string{"requierd", "rack"}},
		{"json", map[string]string{v1alpha1.LateRoles: `{"launcher":{"mem`}, nil, []string{v1alpha1.LateRoles, "launcher"}},
		{"timeout", map[string]string{v1alpha1.StartTimeout: "5 minutes"}, nil, []string{v1alpha1.StartTimeout, "5 minutes"}},
		{"long", map[string]string{v1alpha1.Gang: strings.Repeat("g", 300)}, nil, []string{v1alpha1.Gang, "300 characters"}},
		{"unicode", map[string]string{v1alpha1.Gang: "gäng"}, nil, []string{v1alpha1.Gang, "gäng"}},
		{"newline", map[string]string{v1alpha1.Gang: "a\nb"}, nil, []string{v1alpha1.Gang, `a\nb`}},
		{"path", map[string]string{v1alpha1.Gang: "../x"}, nil, []string{v1alpha1.Gang, "../x"}},
		{"glob", map[string]string{v1alpha1.Gang: "a*[b]"}, nil, []string{v1alpha1.Gang, "a*[b]"}},
		{"empty", map[string]string{v1alpha1.Gang: ""}, nil, []string{v1alpha1.Gang, "empty"}},
		{"nameless", map[string]string{v1alpha1.Gang: "-", v1alpha1.MinMember: "2"}, nil, []string{v1alpha1.Gang}},
		{"label", nil, map[string]string{"lockstep.scheduler/gan": "x"}, []string{"lockstep.scheduler/gan"}},
	}
	var pods []*corev1.Pod
	for _, b := range bad {
		w := s.workload(stack.Workload{Name: b.name, Gang: "gang-" + b.name, Min: 1, Pods: 1, GPUs: 1, Annotations: b.annotations, Labels: b.labels})
		if b.labels != nil {
			w.Gang = ""
		}
		pods = append(pods, w.Pod(0))
	}
	if err := s.CreatePods(t.Context(), pods...); err != nil {
		t.Fatal(err)
	}
	s.create(stack.Workload{Name: "good", Gang: "good", Pods: 4, GPUs: 8})
	s.await(30*time.Second, bound("good", 4))
	err := wait(t.Context(), 30*time.Second, func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Events(s.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, b := range bad {
			if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
				return e.InvolvedObject.Name == b.name+"-0" && e.Reason == "GangPending" && len(e.Message) < 1024 &&
					!slices.ContainsFunc(b.says, func(text string) bool { return !strings.Contains(e.Message, text) })
			}) {
				return fmt.Errorf("pod %s has no event that says %q", b.name, b.says)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bad {
		p, err := s.Client.CoreV1().Pods(s.ns).Get(t.Context(), b.name+"-0", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Spec.NodeName != "" {
			t.Errorf("pod %s was scheduled", p.Name)
		}
	}
}

// TestCase_J4_ImpossibleRequestsAreNamed at the first look.
func TestCase_J4_ImpossibleRequestsAreNamed(t *testing.T) {
	s := shared.begin(t)
	s.create(
		stack.Workload{Name: "fat", Gang: "fat", Pods: 1, GPUs: 16},
		stack.Workload{Name: "wide", Gang: "wide", Pods: 20, GPUs: 8},
	)
	s.awaitMessage("fat", "no node has 16 nvidia.com/gpu (the most is 8)")
	s.awaitMessage("wide", "needs 20 nodes with 8 nvidia.com/gpu each; the cluster has 16")
}

// TestCase_J2_GangsOfTwoNamespacesAreTwo: the same name in two namespaces is two
// gangs, and a gang made again under its old name starts from nothing.
func TestCase_J2_GangsOfTwoNamespacesAreTwo(t *testing.T) {
	live, shadow := shared.begin(t), shared.begin(t)
	for _, s := range []*scene{live, shadow} {
		s.create(stack.Workload{Name: "g", Gang: "g", Min: 2, Pods: 1, GPUs: 1})
	}
	for _, s := range []*scene{live, shadow} {
		s.awaitMessage("g", "1 of 2 members exist")
	}
	w := live.workload(stack.Workload{Name: "g", Gang: "g", Min: 2, Pods: 2, GPUs: 1})
	if err := live.CreatePods(t.Context(), w.Pod(1)); err != nil {
		t.Fatal(err)
	}
	live.await(30*time.Second, bound("g", 2))
	live.deletePods("app=g")
	live.await(30*time.Second, bound("g", 0))
	live.create(stack.Workload{Name: "g", Gang: "g", Min: 3, Pods: 2, GPUs: 1})
	live.awaitMessage("g", "2 of 3 members exist")
	shadow.await(time.Second, bound("g", 0))
}

// TestCase_C1_LateRolesHaveTheirRoom: a launcher that is created after its workers
// run is either waited for by name, or, if it is said to come late, its room is
// kept for it.
func TestCase_C1_LateRolesHaveTheirRoom(t *testing.T) {
	s := shared.begin(t)
	role := func(name string, minimum string, more ...string) map[string]string {
		out := map[string]string{v1alpha1.Role: name, v1alpha1.RoleMinMember: minimum}
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	// Declared by the workers, a launcher is waited for.
	s.create(stack.Workload{Name: "w", Gang: "early", Min: 3, Pods: 2, GPUs: 1, Annotations: role("worker", "2")})
	s.awaitMessage("early", "2 of 3 members exist; waits for 1 more")

	late := []string{v1alpha1.LateRoles, `{"launcher":{"members":1,"requests":{"nvidia.com/gpu":"8"}}}`}
	on := only("gpu-0", "gpu-1")
	s.create(stack.Workload{Name: "v", Gang: "late", Min: 2, Pods: 1, GPUs: 8, Annotations: role("worker", "1", late...), Change: on})
	s.await(30*time.Second, bound("late", 1))
	s.create(stack.Workload{Name: "rival", Gang: "rival", Pods: 1, GPUs: 8, Change: on})
	s.awaitMessage("rival", "nvidia.com/gpu")
	s.create(stack.Workload{Name: "launcher", Gang: "late", Min: 2, Pods: 1, GPUs: 8, Annotations: role("launcher", "1", late...), Change: on})
	s.await(30*time.Second, bound("late", 2))
	s.await(time.Second, bound("rival", 0))
}

// TestCase_C3_ARollingUpdateGoesOn: a surge pod of a new revision joins the running
// gang of the same name; without a shared name it is told that it waits for nobody.
func TestCase_C3_ARollingUpdateGoesOn(t *testing.T) {
	s := shared.begin(t)
	s.create(stack.Workload{Name: "rs1", Gang: "g", Pods: 2, GPUs: 1})
	s.await(30*time.Second, bound("g", 2))
	s.create(stack.Workload{Name: "rs2", Gang: "g", Min: 2, Pods: 1, GPUs: 1})
	s.await(30*time.Second, bound("g", 3))
	s.create(stack.Workload{Name: "lone", Gang: "lone", Min: 2, Pods: 1, GPUs: 1})
	s.awaitMessage("lone", "1 of 2 members exist")
}

// TestCase_B2_SucceededMembersCount: one index of a Job is done, another crashes; its
// replacement starts.
func TestCase_B2_SucceededMembersCount(t *testing.T) {
	s := shared.begin(t)
	w := s.workload(stack.Workload{Name: "g", Gang: "g", Pods: 3, GPUs: 1})
	s.job(w)
	s.await(30*time.Second, bound("g", 3))
	// Once KWOK has started a pod, nobody else writes its status.
	pods := s.running(30*time.Second, 3)
	for i, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		patch := fmt.Appendf(nil, `{"status":{"phase":%q}}`, phase)
		must(s.Client.CoreV1().Pods(s.ns).Patch(t.Context(), pods[i], types.MergePatchType, patch, metav1.PatchOptions{}, "status"))
	}
	s.await(30*time.Second, func(gangs map[string]stack.Gang) error {
		if g := gangs["g"]; g.Bound != 2 || g.Done != 1 {
			return fmt.Errorf("gang g has %d bound and %d done, want 2 and 1 (%v)", g.Bound, g.Done, g.Messages)
		}
		return nil
	})
}
