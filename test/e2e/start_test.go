package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/test/stack"
)

func TestGangOfEightStarts(t *testing.T) {
	s := shared.begin(t)
	s.job(stack.Workload{Name: "train", Gang: "train", Pods: 8, GPUs: 8})
	s.await(30*time.Second, bound("train", 8))
	s.settled(time.Second)
}

func TestGangOfSixtyFourStarts(t *testing.T) {
	s := shared.begin(t)
	s.job(stack.Workload{Name: "train", Gang: "train", Pods: 64, GPUs: 1})
	s.await(30*time.Second, bound("train", 64))
	s.settled(time.Second)
	// 64 GPUs are 8 nodes, which is one block.
	blocks := map[string]bool{}
	for _, node := range s.gangs()["train"].Nodes {
		n, err := s.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		blocks[n.Labels["topology.kubernetes.io/block"]] = true
	}
	if len(blocks) != 1 {
		t.Errorf("64 GPUs are spread over the blocks %v, one of which has room for them", blocks)
	}
}

// exactly is a condition: so many of the gangs have started whole, and the others
// have not a single member bound.
func exactly(whole int, names ...string) func(map[string]stack.Gang) error {
	return func(gangs map[string]stack.Gang) error {
		started := 0
		for _, name := range names {
			switch g := gangs[name]; {
			case g.Bound == 0:
			case g.Bound >= g.Min:
				started++
			default:
				return fmt.Errorf("gang %s has %d of %d bound", name, g.Bound, g.Min)
			}
		}
		if started != whole {
			return fmt.Errorf("%d of the gangs have started, want %d", started, whole)
		}
		return nil
	}
}

// TestCase_A1_NoMixOfHalfHeldGangs: gangs that are created in a mixed order while
// the cluster is full; as room comes, whole gangs start.
func TestCase_A1_NoMixOfHalfHeldGangs(t *testing.T) {
	s := shared.begin(t)
	s.create(stack.Workload{Name: "filler", Gang: "filler", Pods: 16, GPUs: 8})
	s.await(30*time.Second, bound("filler", 16))
	names := []string{"a", "b", "c"}
	var gangs []stack.Workload
	for _, name := range names {
		gangs = append(gangs, stack.Workload{Name: name, Gang: name, Pods: 64, GPUs: 1})
	}
	s.create(gangs...)
	s.deletePods("app=filler")
	s.await(60*time.Second, exactly(2, names...))
	s.settled(2 * time.Second)
	s.await(time.Second, exactly(2, names...))
	for name, g := range s.gangs() {
		if g.Bound == 0 && len(g.Messages) != 1 {
			t.Errorf("the members of gang %s give %d different reasons: %q", name, len(g.Messages), g.Messages)
		}
	}
}

func (s *scene) deletePods(selector string) {
	s.t.Helper()
	err := s.Client.CoreV1().Pods(s.ns).DeleteCollection(s.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestRacesForOneRoom lets two gangs race for room that only one of them fits in,
// in many orders; two replicas plan, answer and bind in turn.
func TestRacesForOneRoom(t *testing.T) {
	const seeds = 50
	s := shared.begin(t)
	for seed := range seeds {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		a, b := fmt.Sprintf("a%d", seed), fmt.Sprintf("b%d", seed)
		size := 5 + random.IntN(6) // of 8-GPU pods: two such gangs do not fit into 16 nodes with 7 filled
		w := []stack.Workload{
			{Namespace: s.ns, Name: a, Gang: a, Pods: size, GPUs: 8, Labels: map[string]string{"race": fmt.Sprint(seed)}},
			{Namespace: s.ns, Name: b, Gang: b, Pods: 17 - size, GPUs: 8, Labels: map[string]string{"race": fmt.Sprint(seed)}},
		}
		pods := stack.Interleave(w...)
		random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		if err := s.CreatePods(t.Context(), pods...); err != nil {
			t.Fatal(err)
		}
		s.await(30*time.Second, exactly(1, a, b))
		s.deletePods(fmt.Sprintf("race=%d", seed))
		s.await(30*time.Second, func(gangs map[string]stack.Gang) error {
			if n := gangs[a].Pods + gangs[b].Pods; n > 0 {
				return fmt.Errorf("%d pods of race %d are left", n, seed)
			}
			return nil
		})
	}
	s.emptyStore(t.Context())
}

// TestCase_A2_NothingIsHeldForAGangThatCannotFit: one of ten members can never be
// placed; nothing is held for the nine others, and another gang uses the room.
func TestCase_A2_NothingIsHeldForAGangThatCannotFit(t *testing.T) {
	s := shared.begin(t)
	impossible := stack.Workload{Name: "odd", Gang: "g", Min: 10, Pods: 1, GPUs: 8, Change: func(p *corev1.PodTemplateSpec) {
		p.Spec.NodeSelector = map[string]string{"there-is": "no-such-node"}
	}}
	s.create(stack.Workload{Name: "g", Gang: "g", Min: 10, Pods: 9, GPUs: 8}, impossible)
	s.create(stack.Workload{Name: "small", Gang: "small", Pods: 16, GPUs: 8})
	s.await(30*time.Second, bound("small", 16))
	s.awaitMessage("g", "not matched by node selector")
	s.settled(time.Second)
}

// awaitMessage waits until the members of the gang that wait all say the same, and
// it contains the text.
func (s *scene) awaitMessage(name, text string) {
	s.t.Helper()
	s.await(30*time.Second, func(gangs map[string]stack.Gang) error {
		g := gangs[name]
		if len(g.Messages) != 1 || !strings.Contains(g.Messages[0], text) {
			return fmt.Errorf("the members of gang %s say %q, want %q", name, g.Messages, text)
		}
		return nil
	})
}

// TestCase_A4_ALargeGangDoesNotStarveSmallOnes: the oldest gang cannot fit; newer
// gangs and single pods start.
func TestCase_A4_ALargeGangDoesNotStarveSmallOnes(t *testing.T) {
	s := shared.begin(t)
	s.create(stack.Workload{Name: "old", Gang: "old", Pods: 17, GPUs: 8})
	s.awaitMessage("old", "needs 17 nodes with 8 nvidia.com/gpu each; the cluster has 16")
	s.create(stack.Workload{Name: "new", Gang: "new", Pods: 4, GPUs: 8})
	s.create(stack.Workload{Name: "single", Pods: 1, GPUs: 1})
	s.await(30*time.Second, bound("new", 4))
	s.awaitBound("single-0")
}

func (s *scene) awaitBound(pod string) string {
	s.t.Helper()
	node := ""
	err := wait(s.t.Context(), 30*time.Second, func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(s.ns).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node = p.Spec.NodeName; node == "" {
			return fmt.Errorf("pod %s is not bound: %+v", pod, p.Status.Conditions)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return node
}

func wait(ctx context.Context, limit time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not within %s", limit), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestCase_A6_MembersOnOneNodeStartTogether: all members land on one node and are
// bound at once.
func TestCase_A6_MembersOnOneNodeStartTogether(t *testing.T) {
	s := shared.begin(t)
	s.create(stack.Workload{Name: "g", Gang: "g", Pods: 4, GPUs: 2})
	s.await(30*time.Second, bound("g", 4))
	g := s.gangs()["g"]
	if g.Nodes[0] != g.Nodes[3] {
		t.Errorf("four times 2 GPUs are on the nodes %v; one node has room for them", g.Nodes)
	}
	s.settled(time.Second)
}

// TestCase_B4_EarlyMembersWaitWithoutPenalty: members that come one by one start
// with the last of them, and a recreated one starts alone at once.
func TestCase_B4_EarlyMembersWaitWithoutPenalty(t *testing.T) {
	s := shared.begin(t)
	w := s.workload(stack.Workload{Name: "g", Gang: "g", Pods: 5, GPUs: 1})
	for i := range w.Pods {
		if i == 3 {
			s.awaitMessage("g", "3 of 5 members exist; waits for 2 more")
		}
		if err := s.CreatePods(t.Context(), w.Pod(i)); err != nil {
			t.Fatal(err)
		}
	}
	s.await(30*time.Second, bound("g", 5))
	if err := s.Client.CoreV1().Pods(s.ns).Delete(t.Context(), "g-3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.await(30*time.Second, bound("g", 4))
	if err := s.CreatePods(t.Context(), w.Pod(3)); err != nil {
		t.Fatal(err)
	}
	s.await(30*time.Second, bound("g", 5))
	// A penalty would be a failed attempt: kube-scheduler waits the longer, the more
	// there are.
	events, err := s.Client.CoreV1().Events(s.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range events.Items {
		t.Errorf("%s: %s", events.Items[i].InvolvedObject.Name, events.Items[i].Message)
	}
}

// TestCPUMembersAreHeldToAllOrNothing: a launcher without GPUs reaches the extender
// like its workers, and a plain CPU pod never does.
func TestCPUMembersAreHeldToAllOrNothing(t *testing.T) {
	s := shared.begin(t)
	s.create(stack.Workload{Name: "launcher", Gang: "g", Min: 3, Pods: 1, Annotations: map[string]string{v1alpha1.Role: "launcher"}})
	s.awaitMessage("g", "1 of 3 members exist")
	before := s.filterCalls()
	s.create(stack.Workload{Name: "plain", Pods: 1})
	s.awaitBound("plain-0")
	if after := s.filterCalls(); after != before {
		t.Errorf("a plain CPU pod made %v calls of Filter", after-before)
	}
	s.create(stack.Workload{Name: "worker", Gang: "g", Min: 3, Pods: 2, GPUs: 8, Annotations: map[string]string{v1alpha1.Role: "worker"}})
	s.await(30*time.Second, bound("g", 3))
	s.settled(time.Second)
}

// filterCalls counts the calls of Filter that the replicas have answered.
func (s *scene) filterCalls() uint64 {
	s.t.Helper()
	n := uint64(0)
	for _, r := range s.Replicas {
		families, err := r.Metrics(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		for _, m := range families["lockstep_extender_request_duration_seconds"].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "verb" && l.GetValue() == "filter" {
					n += m.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	return n
}
