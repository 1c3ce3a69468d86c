package cluster

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/topology"
)

const gpu = "nvidia.com/gpu"

func newCluster() *Cluster {
	return New(Options{GPU: gpu, Levels: []topology.Level{{Name: "rack", Keys: []string{"rack"}}}})
}

func aNode(name string, gpus int64) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{gpu: *resource.NewQuantity(gpus, resource.DecimalSI), corev1.ResourcePods: resource.MustParse("110")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// aPod is a pod of one GPU, made at the second of its version.
func aPod(name string, version int, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: fmt.Sprint(version),
			CreationTimestamp: metav1.NewTime(time.Unix(int64(version), 0)), Annotations: map[string]string{},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{gpu: resource.MustParse("1")},
		}}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func of(name string, minimum int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations[v1alpha1.Gang], p.Annotations[v1alpha1.MinMember] = name, fmt.Sprint(minimum)
	}
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// free is how many GPUs the view shows as free on the node.
func free(t *testing.T, v *View, node string) int64 {
	t.Helper()
	n, ok := v.Snapshot.Tree.Number(node)
	if !ok {
		t.Fatalf("no node %s", node)
	}
	return v.Snapshot.Row(n)[v.Snapshot.GPU]
}

func TestRoomIsCountedOnce(t *testing.T) {
	c := newCluster()
	c.SetPod(aPod("early", 1, on("n1"))) // its node is not known yet
	c.SetNode(aNode("n1", 8))
	c.SetNode(aNode("n2", 8))
	claims := []Claim{{Requests: map[string]int64{gpu: 3}, Holds: []Hold{{UID: "held", Node: "n1"}, {Node: "n2"}, {UID: "x", Node: "no-such-node"}}}}
	if got := free(t, c.View(claims, time.Unix(0, 0)), "n1"); got != 4 {
		t.Errorf("with one bound pod and a hold of 3: %d free", got)
	}
	c.SetPod(aPod("held", 2, on("n1")))
	v := c.View(claims, time.Unix(0, 0))
	if got := free(t, v, "n1"); got != 6 {
		t.Errorf("a hold whose pod is bound counts twice: %d free", got)
	}
	if got := free(t, v, "n2"); got != 5 {
		t.Errorf("a hold for a pod to come: %d free", got)
	}
	c.SetPod(aPod("held", 3, on("n1"), phase(corev1.PodSucceeded)))
	if got := free(t, c.View(nil, time.Unix(0, 0)), "n1"); got != 7 {
		t.Errorf("a pod that is done: %d free", got)
	}
	// A pod that is ending holds its GPUs until it is gone.
	c.SetPod(aPod("early", 4, on("n1"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }))
	if got := free(t, c.View(nil, time.Unix(0, 0)), "n1"); got != 7 {
		t.Errorf("a pod that is ending: %d free", got)
	}
	c.DeletePod("early", "5")
	if got := free(t, c.View(nil, time.Unix(0, 0)), "n1"); got != 8 {
		t.Errorf("all are gone: %d free", got)
	}
	if v := c.View(nil, time.Unix(0, 0)); v.Version != 5 {
		t.Errorf("version %d", v.Version)
	}
}

// TestCase_I2_OvercommitmentIsSeen: what others bind counts, also on reserved room.
func TestCase_I2_OvercommitmentIsSeen(t *testing.T) {
	c := newCluster()
	c.SetNode(aNode("n1", 8))
	claims := []Claim{{Requests: map[string]int64{gpu: 8}, Holds: []Hold{{UID: "g", Node: "n1"}}}}
	if v := c.View(claims, time.Unix(0, 0)); v.Overcommitted["n1"] {
		t.Error("a full node is taken for overcommitted")
	}
	c.SetPod(aPod("foreign", 1, on("n1")))
	if v := c.View(claims, time.Unix(0, 0)); !v.Overcommitted["n1"] {
		t.Error("a foreign pod on reserved room goes unnoticed")
	}
}

// TestRoomAgainstACount compares the room that is kept up to date with a count of
// the pods, after random changes in any order.
func TestRoomAgainstACount(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := newCluster()
		pods, nodes := map[string]*corev1.Pod{}, map[string]bool{}
		for i := range rapid.IntRange(1, 40).Draw(r, "steps") {
			node := rapid.SampledFrom([]string{"n1", "n2"}).Draw(r, "node")
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(r, "pod")
			switch rapid.IntRange(0, 4).Draw(r, "step") {
			case 0:
				c.SetNode(aNode(node, 8))
				nodes[node] = true
			case 1:
				c.DeleteNode(node)
				delete(nodes, node)
			case 2:
				c.DeletePod(types.UID(name), fmt.Sprint(i))
				delete(pods, name)
			default:
				p := aPod(name, i, phase(rapid.SampledFrom([]corev1.PodPhase{corev1.PodRunning, corev1.PodFailed, corev1.PodSucceeded}).Draw(r, "phase")))
				if rapid.Bool().Draw(r, "bound") {
					on(node)(p)
				}
				c.SetPod(p)
				pods[name] = p
			}
		}
		v := c.View(nil, time.Unix(0, 0))
		if v.Snapshot.Tree.Len() != len(nodes) {
			r.Fatalf("%d nodes, want %d", v.Snapshot.Tree.Len(), len(nodes))
		}
		for node := range nodes {
			want := int64(8)
			for _, p := range pods {
				if p.Spec.NodeName == node && p.Status.Phase == corev1.PodRunning {
					want--
				}
			}
			if got := free(t, v, node); got != want {
				r.Fatalf("node %s: %d free, want %d", node, got, want)
			}
		}
	})
}

func TestGangsAreAssembled(t *testing.T) {
	c := newCluster()
	c.SetNode(aNode("n1", 8))
	c.SetPod(aPod("old", 1, of("g", 2)))
	c.SetPod(aPod("new", 2, of("g", 3)))
	c.SetPod(aPod("gated", 3, of("g", 3), func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "other.io/gate"}, {Name: v1alpha1.Gate}}
	}))
	c.SetPod(aPod("alone", 4))
	c.SetPod(aPod("cpu", 5, func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil }))
	c.SetPod(aPod("bad", 6, of("h", 2), func(p *corev1.Pod) { p.Annotations[v1alpha1.MinMember] = "x" }))
	v := c.View([]Claim{{Requests: map[string]int64{gpu: 1}, Holds: []Hold{{UID: "old", Node: "n1"}}}}, time.Unix(0, 0))
	byKey := map[gang.Key]*Pending{}
	for _, g := range v.Gangs {
		byKey[g.Key] = g
	}
	if len(byKey) != 3 {
		t.Fatalf("got %d gangs", len(byKey))
	}
	g := byKey[gang.Key{Namespace: "ns", Name: "g"}]
	if g.Spec.MinMember != 3 || len(g.Members) != 2 || len(g.Foreign) != 1 || g.Foreign[0].Reason != "other.io/gate" {
		t.Errorf("got %+v", g)
	}
	for _, m := range g.Members {
		if (m.Class < 0) != (m.Name == "old") {
			t.Errorf("member %s has class %d; one with a hold needs none, and others do", m.Name, m.Class)
		}
	}
	if single := byKey[SingleKey("ns", "alone")]; !single.Single || single.Spec.MinMember != 1 {
		t.Errorf("got %+v", single)
	}
	if h := byKey[gang.Key{Namespace: "ns", Name: "h"}]; h.Invalid == "" {
		t.Error("a gang that cannot be understood passes for good")
	}
}

// TestCase_J2_ARecreatedGangLooksChanged, so that what was known of the old one does
// not serve the new.
func TestCase_J2_ARecreatedGangLooksChanged(t *testing.T) {
	c := newCluster()
	c.SetPod(aPod("a", 1, of("g", 2)))
	before := c.View(nil, time.Unix(0, 0)).Gangs[0].Changes
	c.DeletePod("a", "2")
	c.SetPod(aPod("b", 3, of("g", 2)))
	if after := c.View(nil, time.Unix(0, 0)).Gangs[0].Changes; after == before {
		t.Errorf("both look the same: %d", after)
	}
}

func TestPinsCanBeTakenOff(t *testing.T) {
	c := newCluster()
	c.SetNode(aNode("n1", 8))
	c.SetNode(aNode("n2", 8))
	free := aPod("p", 1, of("g", 1))
	pinned := free.DeepCopy()
	pinned.Annotations[v1alpha1.PinnedTo] = "n1"
	pinned.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: readPod(free, gpu).PinnedTerms("n1"),
	}}}
	c.SetPod(pinned)
	v := c.View(nil, time.Unix(0, 0))
	g := v.Gangs[0]
	eligible := func(id gang.ClassID) (n int) {
		for _, ok := range v.Snapshot.Classes[id].Eligible {
			if ok {
				n++
			}
		}
		return n
	}
	if with, without := eligible(g.Members[0].Class), eligible(g.Unpinned["p"]); with != 1 || without != 2 {
		t.Errorf("%d nodes with the pin, %d without", with, without)
	}
	// Who only claims to be pinned breaks nothing.
	forged := aPod("q", 2, of("f", 1), func(p *corev1.Pod) { p.Annotations[v1alpha1.PinnedTo] = "n1" })
	c.SetPod(forged)
	c.View(nil, time.Unix(0, 0))
}

// TestGateWithoutGangIsAMistake: nobody would ever take the gate away.
func TestGateWithoutGangIsAMistake(t *testing.T) {
	p := aPod("p", 1, func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = nil
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}}
	})
	if got := readPod(p, gpu); got.bad == nil || got.Key == (gang.Key{}) {
		t.Errorf("got %+v", got)
	}
}
