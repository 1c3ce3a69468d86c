package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/nodeagent"
	"github.com/lockstep-scheduler/lockstep/test/stack"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// machines are the captures that the node pools of mixedNodes simulate.
var machines = map[string]string{
	"h100": "h100-8x-sxm-nv18", "a100": "a100-8x-sxm-nv12", "v100": "dgx1-v100-8x-hybrid-cube-mesh",
	"pairs": "pcie-8x-nv12-pairs", "l40s": "l40s-4x-pcie-2numa",
}

const mixedNodes = `
nodes:
- {name: "h100-{n}", count: 8, gpus: 8, perRack: 4}
- {name: "a100-{n}", count: 16, gpus: 8, perRack: 4}
- {name: "v100-{n}", count: 16, gpus: 8, perRack: 4}
- {name: "pairs-{n}", count: 16, gpus: 8, perRack: 4}
- {name: "l40s-{n}", count: 8, gpus: 4, perRack: 4}
`

// linked is a world of simulated machines.
type linked struct {
	*scene
	reports dynamic.ResourceInterface
	tables  map[string]*topology.Table // by pool
}

func pool(node string) string { return node[:strings.LastIndexByte(node, '-')] }

func startLinked(t *testing.T, nodes string) *linked {
	t.Helper()
	w := newWorld(t, stack.Options{Nodes: nodes, Replicas: 1, Race: true})
	client, err := dynamic.NewForConfig(w.Lab.Config())
	if err != nil {
		t.Fatal(err)
	}
	l := &linked{reports: client.Resource(v1alpha1.NodeTopologies), tables: map[string]*topology.Table{}}
	described := map[string]*nodeagent.Machine{}
	for name, matrix := range machines {
		m, err := nodeagent.ReadMachine(filepath.Join(stack.Root(), "topology/testdata/matrices", matrix+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		described[name] = m
		parsed, err := topology.ParseMatrix(m.Matrix)
		if err != nil {
			t.Fatal(err)
		}
		g, err := parsed.Graph(m.Model)
		if err != nil {
			t.Fatal(err)
		}
		l.tables[name] = topology.NewTable(g)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	wait, err := w.StartAgents(ctx, func(n *corev1.Node) *nodeagent.Machine { return described[pool(n.Name)] })
	t.Cleanup(func() {
		cancel()
		if wait != nil {
			wait()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	l.scene = w.begin(t)
	return l
}

// read gives the nodes' reports.
func (l *linked) read() map[string]*v1alpha1.NodeTopologyStatus {
	l.t.Helper()
	list, err := l.reports.List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	out := map[string]*v1alpha1.NodeTopologyStatus{}
	for _, item := range list.Items {
		var n v1alpha1.NodeTopology
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &n); err != nil {
			l.t.Fatal(err)
		}
		out[n.Name] = &n.Status
	}
	return out
}

// free gives the free GPUs of each node.
func (l *linked) free(reports map[string]*v1alpha1.NodeTopologyStatus) map[string]topology.Set {
	out := map[string]topology.Set{}
	for node, s := range reports {
		out[node] = l.tables[pool(node)].All()
		for _, p := range s.Pods {
			for _, i := range p.GPUs {
				out[node] &^= topology.SetOf(int(i))
			}
		}
	}
	return out
}

// handed waits until the reports show the GPUs of all pods of the gang, and gives
// them with the pods.
func (l *linked) handed(gang string, n int) (pods []corev1.Pod, sets []topology.Set) {
	l.t.Helper()
	await(l.t, 20*time.Second, func() error {
		list, err := l.Client.CoreV1().Pods(l.ns).List(l.t.Context(), metav1.ListOptions{LabelSelector: "app=" + gang})
		if err != nil {
			return err
		}
		pods, sets = list.Items, nil
		reports := l.read()
		for _, p := range pods {
			s := reports[p.Spec.NodeName]
			if s == nil {
				return fmt.Errorf("pod %s is on node %q, which has no report", p.Name, p.Spec.NodeName)
			}
			i := slices.IndexFunc(s.Pods, func(u v1alpha1.PodGPUs) bool { return u.Namespace == p.Namespace && u.Name == p.Name })
			if i < 0 {
				return fmt.Errorf("node %s does not report pod %s", p.Spec.NodeName, p.Name)
			}
			var set topology.Set
			for _, gpu := range s.Pods[i].GPUs {
				set |= topology.SetOf(int(gpu))
			}
			sets = append(sets, set)
		}
		if len(pods) != n {
			return fmt.Errorf("%d of %d pods", len(pods), n)
		}
		return nil
	})
	return pods, sets
}

// TestGangsLandOnTheBestRing: on 64 simulated nodes of five kinds, with a real
// scheduler, each pod gets GPUs that were foreseen for it, with a ring no worse than
// was promised, and a pod by itself the best ring that was free anywhere.
func TestGangsLandOnTheBestRing(t *testing.T) {
	l := startLinked(t, mixedNodes)
	rng := rand.New(rand.NewPCG(64, 0))
	var running []string
	total := 0.0
	for i := range 40 {
		name := fmt.Sprintf("g%d", i)
		k, n, link := []int{1, 2, 2, 4, 4, 8}[rng.IntN(6)], 1, ""
		switch rng.IntN(4) {
		case 0:
			n = 2 + rng.IntN(3)
		case 1:
			link = []string{"nvlink", "numa", "nvswitch"}[rng.IntN(3)]
		}
		if k == 8 && link == "numa" {
			link = "" // no machine has eight on one NUMA node
		}
		before := l.free(l.read())
		w := stack.Workload{Name: name, Pods: n, Gang: name, GPUs: k, Annotations: map[string]string{}}
		if link != "" {
			w.Annotations[v1alpha1.GPULinkRequired] = link
		}
		l.job(w)
		l.await(time.Minute, bound(name, n))
		running = append(running, name)
		total += float64(n)
		pods, sets := l.handed(name, n)
		for i, p := range pods {
			l.checkPod(p, sets[i], k, link)
		}
		if n == 1 && k > 1 {
			l.checkBest(pods[0], before, k, link)
		}
		// Some end, so that nodes become fragments.
		if len(running) > 12 {
			at := rng.IntN(len(running))
			l.remove(running[at])
			running = slices.Delete(running, at, at+1)
		}
	}
	l.settled(time.Second)
	await(t, 10*time.Second, func() error { return l.counted(total) })
}

// counted tells whether all pods were counted as having got what was foreseen.
func (l *linked) counted(total float64) error {
	families, err := l.Replicas[0].Metrics(l.t.Context())
	if err != nil {
		return err
	}
	var seen []string
	for _, m := range families["lockstep_gpus_handed_total"].GetMetric() {
		if verdict := m.GetLabel()[0].GetValue(); verdict != "foreseen" || m.GetCounter().GetValue() != total {
			seen = append(seen, fmt.Sprintf("%s: %v", verdict, m.GetCounter().GetValue()))
		} else {
			return nil
		}
	}
	return fmt.Errorf("%v pods should count as foreseen; got %v", total, seen)
}

func (l *linked) placed(p corev1.Pod) v1alpha1.PodPlacement {
	l.t.Helper()
	var out v1alpha1.PodPlacement
	if err := json.Unmarshal([]byte(p.Annotations[v1alpha1.Placement]), &out); err != nil {
		l.t.Fatalf("pod %s: annotation %s=%q: %v", p.Name, v1alpha1.Placement, p.Annotations[v1alpha1.Placement], err)
	}
	return out
}

// checkPod compares what the pod got with what was foreseen and required.
func (l *linked) checkPod(p corev1.Pod, got topology.Set, k int, link string) {
	l.t.Helper()
	table, was := l.tables[pool(p.Spec.NodeName)], l.placed(p)
	if got.Len() != k {
		l.t.Errorf("pod %s got GPUs %v, not %d", p.Name, got.GPUs(), k)
	}
	foreseen := slices.ContainsFunc(was.GPUs, func(gpus []int) bool { return topology.SetOf(gpus...) == got })
	if !foreseen && len(was.GPUs) < v1alpha1.MaxPlacementSets {
		l.t.Errorf("pod %s on %s got GPUs %v; foreseen were %v", p.Name, p.Spec.NodeName, got.GPUs(), was.GPUs)
	}
	if k > 1 && (was.Ring == nil || table.Ring(got) < was.Ring.Worst-0.01 || table.Ring(got) > was.Ring.Best+0.01) {
		l.t.Errorf("pod %s on %s got a ring of %v GB/s; promised was %+v", p.Name, p.Spec.NodeName, table.Ring(got), was.Ring)
	}
	if link != "" {
		r, err := topology.ParseRequirement(link)
		if err != nil {
			l.t.Fatal(err)
		}
		if !table.Meets(got, r) {
			l.t.Errorf("pod %s on %s got GPUs %v, which are not connected by %s", p.Name, p.Spec.NodeName, got.GPUs(), link)
		}
	}
}

// checkBest compares the promised ring with the best that any node had to promise.
func (l *linked) checkBest(p corev1.Pod, before map[string]topology.Set, k int, link string) {
	l.t.Helper()
	var r topology.Requirement
	if link != "" {
		r, _ = topology.ParseRequirement(link)
	}
	best, where := 0.0, ""
	for node, free := range before {
		table := l.tables[pool(node)]
		if table.Fit(free, k, topology.ByLinks, topology.Want{Requirement: r}) == 0 {
			continue
		}
		if ring := table.Predict(free, k, topology.ByLinks).Worst; ring > best {
			best, where = ring, node
		}
	}
	if was := l.placed(p); was.Ring.Worst < best-0.01 {
		l.t.Errorf("pod %s of %d GPUs is on %s with %v GB/s; node %s promised %v", p.Name, k, p.Spec.NodeName, was.Ring.Worst, where, best)
	}
}

// remove deletes a gang, and waits until the reports have forgotten it.
func (l *linked) remove(gang string) {
	l.t.Helper()
	background := metav1.DeletePropagationBackground
	if err := l.Client.BatchV1().Jobs(l.ns).Delete(l.t.Context(), gang, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		l.t.Fatal(err)
	}
	await(l.t, 30*time.Second, func() error {
		for node, s := range l.read() {
			for _, p := range s.Pods {
				if strings.HasPrefix(p.Name, gang+"-") {
					return fmt.Errorf("node %s still reports pod %s", node, p.Name)
				}
			}
		}
		return nil
	})
}

// TestCase_D1_NoUnlinkedGPUsWhereALinkIsRequired: with two unlinked GPUs free, a pod
// that requires NVLink waits and says why; when a linked pair is free, it gets that.
func TestCase_D1_NoUnlinkedGPUsWhereALinkIsRequired(t *testing.T) {
	l := startLinked(t, "nodes: [{name: \"pairs-{n}\", count: 1, gpus: 8}]")
	holds := map[topology.Set]string{}
	for i := range 8 {
		name := fmt.Sprintf("single-%d", i)
		l.job(stack.Workload{Name: name, Pods: 1, Gang: name, GPUs: 1})
		l.await(time.Minute, bound(name, 1))
		_, sets := l.handed(name, 1)
		holds[sets[0]] = name
	}
	// 0 and 2 are a pair, and 1 is of another.
	l.remove(holds[topology.SetOf(0)])
	l.remove(holds[topology.SetOf(1)])
	l.job(stack.Workload{Name: "linked", Pods: 1, Gang: "linked", GPUs: 2, Annotations: map[string]string{v1alpha1.GPULinkRequired: "nvlink"}})
	l.await(time.Minute, func(gangs map[string]stack.Gang) error {
		if g := gangs["linked"]; !slices.ContainsFunc(g.Messages, func(m string) bool { return strings.Contains(m, "not connected so") }) {
			return fmt.Errorf("gang linked says %v", g.Messages)
		}
		return nil
	})
	l.remove(holds[topology.SetOf(2)])
	l.await(time.Minute, bound("linked", 1))
	pods, sets := l.handed("linked", 1)
	l.checkPod(pods[0], sets[0], 2, "nvlink")
	if sets[0] != topology.SetOf(0, 2) {
		t.Errorf("got GPUs %v", sets[0].GPUs())
	}
}
