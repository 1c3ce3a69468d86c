package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/test/lab"
	"github.com/lockstep-scheduler/lockstep/test/stack"
)

// only restricts pods to the nodes.
func only(nodes ...string) func(*corev1.PodTemplateSpec) {
	return func(p *corev1.PodTemplateSpec) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}},
			}}},
		}}
	}
}

func (s *scene) cordon(node string, yes bool) {
	s.t.Helper()
	if err := s.Lab.Cordon(context.WithoutCancel(s.t.Context()), node, yes); err != nil {
		s.t.Fatal(err)
	}
	if yes {
		s.t.Cleanup(func() { _ = s.Lab.Cordon(context.Background(), node, false) })
	}
}

func (s *scene) deletePod(name string) {
	s.t.Helper()
	if err := s.Client.CoreV1().Pods(s.ns).Delete(s.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// awaitEvent waits for an event of the reason whose message has the text.
func (s *scene) awaitEvent(reason, text string) {
	s.t.Helper()
	err := wait(s.t.Context(), 30*time.Second, func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Events(s.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("no event %s with %q among %d", reason, text, len(list.Items))
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestCase_B1_ABrokenGangComesFirst: a gang that lost a member has the first claim
// to the room it lost; if it does not become whole, it is evicted.
func TestCase_B1_ABrokenGangComesFirst(t *testing.T) {
	s := shared.begin(t)
	g := s.workload(stack.Workload{Name: "g", Gang: "g", Pods: 2, GPUs: 8, Change: only("gpu-0", "gpu-1")})
	s.create(g)
	s.await(30*time.Second, bound("g", 2))
	lost := g.Pod(1)
	node := s.awaitBound(lost.Name)
	s.cordon(node, true)
	s.deletePod(lost.Name)
	s.create(stack.Workload{Name: "f", Gang: "f", Pods: 1, GPUs: 8, Change: only("gpu-0", "gpu-1")})
	s.awaitMessage("f", "nvidia.com/gpu")
	if err := s.CreatePods(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	s.cordon(node, false)
	s.await(30*time.Second, bound("g", 2))
	if n := s.gangs()["f"].Bound; n != 0 {
		t.Fatalf("the filler took the room that the broken gang had lost")
	}
	// Now the member does not come back: after the grace the rest goes, too.
	s.deletePod(lost.Name)
	s.awaitEvent("GangEvicted", "1 of 2 members exist")
	s.await(60*time.Second, bound("f", 1))
}

// TestCase_B5_ATerminatingMemberGivesItsPlace: the replacement of a member that is
// still ending counts, and starts once there is room.
func TestCase_B5_ATerminatingMemberGivesItsPlace(t *testing.T) {
	s := shared.begin(t)
	g := s.workload(stack.Workload{
		Name: "g", Gang: "g", Pods: 3, GPUs: 8,
		Annotations: map[string]string{lab.AnnotationStopSeconds: "3"}, Change: only("gpu-0", "gpu-1", "gpu-2"),
	})
	s.create(g)
	s.await(30*time.Second, bound("g", 3))
	grace := int64(60)
	if err := s.Client.CoreV1().Pods(s.ns).Delete(t.Context(), "g-1", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	replacement := g.Pod(1)
	replacement.Name = "g-1b"
	if err := s.CreatePods(t.Context(), replacement); err != nil {
		t.Fatal(err)
	}
	s.awaitBound("g-1b")
	s.await(10*time.Second, bound("g", 3))
}

// hang stops kube-scheduler for as long as the function runs: what is planned
// meanwhile stays reserved.
func (s *scene) hang(do func()) {
	s.t.Helper()
	if err := s.Lab.Signal(lab.Scheduler, syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := s.Lab.Signal(lab.Scheduler, syscall.SIGCONT); err != nil {
			s.t.Error(err)
		}
	}()
	do()
}

// awaitPlaced waits until n pods of the gang were sent to nodes, and gives these.
func (s *scene) awaitPlaced(name string, n int, not ...string) []string {
	s.t.Helper()
	var nodes []string
	err := wait(s.t.Context(), 30*time.Second, func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		nodes = nil
		for i := range list.Items {
			p := &list.Items[i]
			if p.Annotations[v1alpha1.Gang] != name || p.DeletionTimestamp != nil {
				continue
			}
			node := p.Status.NominatedNodeName
			if pinned := p.Annotations[v1alpha1.PinnedTo]; pinned != "" {
				node = pinned
			}
			if node != "" && len(p.Spec.SchedulingGates) == 0 && !slices.Contains(not, node) {
				nodes = append(nodes, node)
			}
		}
		if len(nodes) != n {
			return fmt.Errorf("%d of %d members of gang %s were sent to nodes: %v", len(nodes), n, name, nodes)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return nodes
}

// TestCase_B6_APlanForADeadNodeIsVoid: between plan and bind a node goes, in each of
// the ways it can; the gang is planned again, whether its pods can be moved
// (nominated) or have to be made again (pinned).
func TestCase_B6_APlanForADeadNodeIsVoid(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	ways := []struct {
		name       string
		spoil, fix func(s *scene, node string) error
	}{
		{
			"tainted",
			func(s *scene, node string) error {
				return s.Lab.UpdateNode(ctx, node, func(n *corev1.Node) {
					n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "broken", Effect: corev1.TaintEffectNoSchedule})
				})
			},
			func(s *scene, node string) error {
				return s.Lab.UpdateNode(ctx, node, func(n *corev1.Node) { n.Spec.Taints = nil })
			},
		},
		{
			"cordoned",
			func(s *scene, node string) error { return s.Lab.Cordon(ctx, node, true) },
			func(s *scene, node string) error { return s.Lab.Cordon(ctx, node, false) },
		},
		{
			"not-ready",
			func(s *scene, node string) error { return s.Lab.SetNodeReady(ctx, node, false) },
			func(s *scene, node string) error { return s.Lab.SetNodeReady(ctx, node, true) },
		},
		{
			"fewer-gpus",
			func(s *scene, node string) error { return s.setGPUs(ctx, node, "7") },
			func(s *scene, node string) error { return s.setGPUs(ctx, node, "8") },
		},
	}
	for _, pinned := range []bool{false, true} {
		for _, way := range ways {
			t.Run(fmt.Sprintf("%s-pinned-%t", way.name, pinned), func(t *testing.T) {
				s := shared.begin(t)
				g := stack.Workload{Name: "g", Gang: "g", Pods: 2, GPUs: 8, Change: only("gpu-0", "gpu-1", "gpu-2")}
				var gone string
				s.hang(func() {
					if pinned {
						s.job(g)
					} else {
						s.create(g)
					}
					gone = s.awaitPlaced("g", 2)[0]
					t.Cleanup(func() {
						if err := way.fix(s, gone); err != nil {
							t.Error(err)
						}
					})
					if err := way.spoil(s, gone); err != nil {
						t.Fatal(err)
					}
					s.awaitPlaced("g", 2, gone)
				})
				s.await(30*time.Second, bound("g", 2))
				if nodes := s.gangs()["g"].Nodes; slices.Contains(nodes, gone) {
					t.Errorf("the gang is on %v; %s was %s", nodes, gone, way.name)
				}
				if err := way.fix(s, gone); err != nil {
					t.Fatal(err)
				}
				s.awaitReady(gone)
			})
		}
	}
}

func (s *scene) setGPUs(ctx context.Context, node, n string) error {
	return s.Lab.UpdateNode(ctx, node, func(o *corev1.Node) { o.Status.Allocatable[lab.GPUResource] = quantity(n) })
}

// awaitReady waits until a node has no taint left.
func (s *scene) awaitReady(node string) {
	s.t.Helper()
	err := wait(s.t.Context(), 30*time.Second, func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && len(n.Spec.Taints) > 0 {
			return fmt.Errorf("node %s is tainted: %v", node, n.Spec.Taints)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestCase_I2_ForeignPodsTakeReservedRoom: a pod that nobody asked us about is bound
// where room was reserved; the gang is planned anew.
func TestCase_I2_ForeignPodsTakeReservedRoom(t *testing.T) {
	s := shared.begin(t)
	s.hang(func() {
		s.create(stack.Workload{Name: "g", Gang: "g", Pods: 2, GPUs: 8, Change: only("gpu-0", "gpu-1", "gpu-2")})
		taken := s.awaitPlaced("g", 2)[0]
		foreign := s.workload(stack.Workload{Name: "foreign", Pods: 1, GPUs: 4, Change: func(p *corev1.PodTemplateSpec) { p.Spec.NodeName = taken }})
		if err := s.CreatePods(t.Context(), foreign.Pod(0)); err != nil {
			t.Fatal(err)
		}
		s.awaitPlaced("g", 2, taken)
	})
	s.await(30*time.Second, bound("g", 2))
	// And a single GPU pod is told who holds what it wants.
	s.hang(func() {
		s.create(stack.Workload{Name: "h", Gang: "h", Pods: 1, GPUs: 8, Change: only("gpu-3")})
		s.awaitPlaced("h", 1)
	})
}

// TestPluginsKeepTheLastWord: a member that a plugin of kube-scheduler refuses
// leads to another plan, never to half a gang.
func TestPluginsKeepTheLastWord(t *testing.T) {
	s := shared.begin(t)
	// What the planner does not know: pods of this gang do not go where a rival is.
	s.create(stack.Workload{Name: "rival", Pods: 2, Change: func(p *corev1.PodTemplateSpec) {
		only("gpu-0", "gpu-1")(p)
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "rival"}},
		}}
	}})
	s.awaitBound("rival-0")
	s.awaitBound("rival-1")
	away := func(nodes ...string) func(p *corev1.PodTemplateSpec) {
		return func(p *corev1.PodTemplateSpec) {
			only(nodes...)(p)
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "rival"}},
			}}}
		}
	}
	s.create(stack.Workload{Name: "g", Gang: "g", Pods: 2, GPUs: 8, Change: away("gpu-0", "gpu-1", "gpu-2", "gpu-3")})
	s.create(stack.Workload{Name: "never", Gang: "never", Pods: 2, GPUs: 8, Change: away("gpu-1", "gpu-4")})
	s.await(90*time.Second, bound("g", 2))
	s.awaitEvent("GangLostPlace", "anti-affinity")
	s.await(time.Second, bound("never", 0))
	s.settled(2 * time.Second)
}

// TestDeletingAGangAtAnyMoment leaves nothing in the store.
func TestDeletingAGangAtAnyMoment(t *testing.T) {
	s := shared.begin(t)
	for i := range 20 {
		name := fmt.Sprintf("g%d", i)
		s.create(stack.Workload{Name: name, Gang: name, Pods: 8, GPUs: 8})
		time.Sleep(time.Duration(i*15) * time.Millisecond) // another moment each time
		s.deletePods("app=" + name)
	}
	s.await(30*time.Second, func(gangs map[string]stack.Gang) error {
		if len(gangs) > 0 {
			return fmt.Errorf("%d gangs are left", len(gangs))
		}
		return nil
	})
	s.emptyStore(t.Context())
}
