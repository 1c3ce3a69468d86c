package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/nodeagent"
	"github.com/lockstep-scheduler/lockstep/test/lab"
	"github.com/lockstep-scheduler/lockstep/test/stack"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// kind is a kind of node: a captured machine.
type kind struct {
	name, matrix, model string
	gpus                int
}

var kinds = []kind{
	{"h100", "h100-8x-sxm-nv18", "NVIDIA H100 80GB HBM3", 8},
	{"a100", "a100-8x-sxm-nv12", "NVIDIA A100-SXM4-80GB", 8},
	{"v100", "dgx1-v100-8x-hybrid-cube-mesh", "Tesla V100-SXM2-32GB", 8},
	{"pairs", "pcie-8x-nv12-pairs", "NVIDIA A100-PCIE-40GB", 8},
	{"l40s", "l40s-4x-pcie-2numa", "NVIDIA L40S", 4},
}

// startWithin is how long a gang may take to start before it is given up.
const startWithin = 15 * time.Second

// tally is what an arm has done.
type tally struct {
	placed, half int
	narrowest    int // of the placed ones
	rings, best  int // gangs with rings; of these, those with the best there was
	shares       float64
}

func (t *tally) narrow() float64 { return float64(t.narrowest) / float64(max(t.placed, 1)) }
func (t *tally) ring() float64   { return t.shares / float64(max(t.rings, 1)) }
func (t *tally) asBest() float64 { return float64(t.best) / float64(max(t.rings, 1)) }

// bench is one arm's cluster.
type bench struct {
	*stack.Stack
	arm     arm
	reports dynamic.ResourceInterface
	tables  map[string]*topology.Table
	racks   map[string]string // by node
	blocks  map[string]string
	tally   tally
}

const namespace = metav1.NamespaceDefault

func measure(ctx context.Context, a arm, jobs []job) (_ *tally, err error) {
	s, err := stack.Start(ctx, options(a))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	wait := func() {}
	defer func() {
		cancel()
		wait()
		err = errors.Join(err, s.Stop())
	}()
	b := &bench{Stack: s, arm: a, tables: map[string]*topology.Table{}, racks: map[string]string{}, blocks: map[string]string{}}
	if wait, err = b.prepare(ctx); err != nil {
		return nil, err
	}
	ends := map[int][]string{}
	for i, j := range jobs {
		for _, gang := range ends[i] {
			if err := b.remove(ctx, gang); err != nil {
				return nil, err
			}
		}
		name := fmt.Sprintf("gang-%d", i)
		if err := b.place(ctx, name, j); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		ends[i+j.lasts] = append(ends[i+j.lasts], name)
	}
	return &b.tally, nil
}

// prepare starts the agents.
func (b *bench) prepare(ctx context.Context) (wait func(), err error) {
	none := func() {}
	config := b.Lab.Config()
	if err := stack.Apply(ctx, config, filepath.Join(stack.Root(), "deploy/manifests/lockstep.scheduler_nodetopologies.yaml")); err != nil {
		return none, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return none, err
	}
	b.reports = client.Resource(v1alpha1.NodeTopologies)
	list, err := b.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return none, err
	}
	for _, n := range list.Items {
		b.racks[n.Name], b.blocks[n.Name] = n.Labels[lab.LabelRack], n.Labels[lab.LabelBlock]
	}
	described := map[string]*nodeagent.Machine{}
	for _, k := range kinds {
		m, err := nodeagent.ReadMachine(filepath.Join(stack.Root(), "topology/testdata/matrices", k.matrix+".txt"))
		if err != nil {
			return none, err
		}
		m.Model = k.model
		described[k.name] = m
		parsed, err := topology.ParseMatrix(m.Matrix)
		if err != nil {
			return none, err
		}
		g, err := parsed.Graph(m.Model)
		if err != nil {
			return none, err
		}
		b.tables[k.name] = topology.NewTable(g)
	}
	return b.StartAgents(ctx, func(n *corev1.Node) *nodeagent.Machine { return described[kindOf(n.Name)] })
}

func kindOf(node string) string { return node[:strings.IndexByte(node, '-')] }

func (b *bench) table(node string) *topology.Table { return b.tables[kindOf(node)] }

// place creates a gang, waits until it runs or is given up, and counts how well it
// was placed by what was free before.
func (b *bench) place(ctx context.Context, name string, j job) error {
	before, err := b.free(ctx)
	if err != nil {
		return err
	}
	if err := b.create(ctx, name, j); err != nil {
		return err
	}
	sets, err := b.handed(ctx, name, j.pods)
	if err != nil {
		return err
	}
	switch {
	case len(sets) == j.pods:
	case len(sets) > 0:
		b.tally.half++
		return b.remove(ctx, name)
	default:
		return b.remove(ctx, name)
	}
	b.tally.placed++
	if b.level(sets) <= b.narrowest(before, j) {
		b.tally.narrowest++
	}
	if j.gpus < 2 {
		return nil
	}
	got := 0.0
	for i, h := range sets {
		if ring := b.table(h.node).Ring(h.set); i == 0 || ring < got {
			got = ring
		}
	}
	best := b.bestRing(before, j)
	b.tally.rings++
	b.tally.shares += min(1, got/best)
	if got >= best-0.01 {
		b.tally.best++
	}
	return nil
}

func (b *bench) create(ctx context.Context, name string, j job) error {
	w := stack.Workload{Namespace: namespace, Name: name, Pods: j.pods, GPUs: j.gpus}
	if b.arm.gangs {
		w.Gang = name
	}
	if b.arm.native {
		group := &schedulingv1beta1.PodGroup{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: schedulingv1beta1.PodGroupSpec{
				SchedulingPolicy:      schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(j.pods)}},
				SchedulingConstraints: &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: lab.LabelRack}}},
			},
		}
		if _, err := b.Client.SchedulingV1beta1().PodGroups(namespace).Create(ctx, group, metav1.CreateOptions{}); err != nil {
			return err
		}
		w.Change = func(t *corev1.PodTemplateSpec) {
			t.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
		}
	}
	return b.CreateJob(ctx, w)
}

// held is the GPUs of one pod.
type held struct {
	node string
	set  topology.Set
}

// handed waits until the reports show all pods of the gang, or it is given up.
func (b *bench) handed(ctx context.Context, gang string, n int) ([]held, error) {
	deadline := time.Now().Add(startWithin)
	for {
		var out []held
		reports, err := b.read(ctx)
		if err != nil {
			return nil, err
		}
		for node, s := range reports {
			for _, p := range s.Pods {
				if strings.HasPrefix(p.Name, gang+"-") {
					out = append(out, held{node, setOf(p)})
				}
			}
		}
		if len(out) == n || time.Now().After(deadline) {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func setOf(p v1alpha1.PodGPUs) topology.Set {
	var set topology.Set
	for _, gpu := range p.GPUs {
		set |= topology.SetOf(int(gpu))
	}
	return set
}

func (b *bench) read(ctx context.Context) (map[string]*v1alpha1.NodeTopologyStatus, error) {
	list, err := b.reports.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]*v1alpha1.NodeTopologyStatus{}
	for _, item := range list.Items {
		var n v1alpha1.NodeTopology
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &n); err != nil {
			return nil, err
		}
		out[n.Name] = &n.Status
	}
	return out, nil
}

func (b *bench) free(ctx context.Context) (map[string]topology.Set, error) {
	reports, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]topology.Set{}
	for node, s := range reports {
		out[node] = b.table(node).All()
		for _, p := range s.Pods {
			out[node] &^= setOf(p)
		}
	}
	return out, nil
}

// remove deletes a gang, and waits until no report shows it.
func (b *bench) remove(ctx context.Context, gang string) error {
	background := metav1.DeletePropagationBackground
	err := b.Client.BatchV1().Jobs(namespace).Delete(ctx, gang, metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil && !strings.Contains(err.Error(), "not found") {
		return err
	}
	if b.arm.native {
		if err := b.Client.SchedulingV1beta1().PodGroups(namespace).Delete(ctx, gang, metav1.DeleteOptions{}); err != nil && !strings.Contains(err.Error(), "not found") {
			return err
		}
	}
	for range 300 {
		list, err := b.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + gang})
		if err != nil {
			return err
		}
		reports, err := b.read(ctx)
		if err != nil {
			return err
		}
		left := len(list.Items)
		for _, s := range reports {
			for _, p := range s.Pods {
				if strings.HasPrefix(p.Name, gang+"-") {
					left++
				}
			}
		}
		if left == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("gang %s does not go", gang)
}

// Levels, from narrow to wide.
const (
	host = iota
	rack
	block
	cluster
)

func (b *bench) domain(level int, node string) string {
	return [...]string{node, b.racks[node], b.blocks[node], ""}[level]
}

// level is the narrowest that holds all pods of a gang.
func (b *bench) level(pods []held) int {
	for level := host; ; level++ {
		one := true
		for _, p := range pods {
			one = one && b.domain(level, p.node) == b.domain(level, pods[0].node)
		}
		if one {
			return level
		}
	}
}

// narrowest is the narrowest level of which a domain had the room for the gang.
func (b *bench) narrowest(free map[string]topology.Set, j job) int {
	for level := range cluster {
		room := map[string]int{}
		for node, set := range free {
			room[b.domain(level, node)] += set.Len() / j.gpus
		}
		for _, n := range room {
			if n >= j.pods {
				return level
			}
		}
	}
	return cluster
}

// bestRing is the highest ring that all pods of the gang could have had, anywhere.
func (b *bench) bestRing(free map[string]topology.Set, j job) float64 {
	best := 0.0
	for _, table := range b.tables {
		if table.Len() < j.gpus {
			continue
		}
		for _, ring := range table.Rings(j.gpus) {
			room := 0
			for node, set := range free {
				room += b.table(node).Fit(set, j.gpus, topology.ByLinks, topology.Want{Ring: ring})
			}
			if room >= j.pods {
				best = max(best, ring)
			}
		}
	}
	return best
}
