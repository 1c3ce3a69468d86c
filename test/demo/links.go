package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/nodeagent"
	"github.com/lockstep-scheduler/lockstep/test/lab"
	"github.com/lockstep-scheduler/lockstep/test/stack"
)

// links reads what is known of the GPUs that pods get.
type links struct {
	client  kubernetes.Interface
	reports dynamic.ResourceInterface
}

// machineOf gives the machine that a node is: in the racks r0 and r1 all GPUs reach
// each other over NVSwitches, in the others only pairs are linked.
func machineOf(rack string) (matrix, model string) {
	if rack == "r0" || rack == "r1" {
		return "h100-8x-sxm-nv18", "NVIDIA H100 80GB HBM3"
	}
	return "pcie-8x-nv12-pairs", "NVIDIA A100-PCIE-40GB"
}

// startAgents runs an agent for each node. wait waits until all have ended.
func (d *stage) startAgents(ctx context.Context) (wait func(), err error) {
	none := func() {}
	client, err := dynamic.NewForConfig(d.Lab.Config())
	if err != nil {
		return none, fmt.Errorf("making a client for reports of nodes: %w", err)
	}
	d.links = &links{client: d.Client, reports: client.Resource(v1alpha1.NodeTopologies)}
	machines := map[string]*nodeagent.Machine{}
	for _, rack := range []string{"r0", "r1", "r2", "r3"} {
		matrix, model := machineOf(rack)
		m, err := nodeagent.ReadMachine(filepath.Join(stack.Root(), "topology/testdata/matrices", matrix+".txt"))
		if err != nil {
			return none, err
		}
		m.Model = model
		machines[rack] = m
	}
	wait, err = d.StartAgents(ctx, func(n *corev1.Node) *nodeagent.Machine { return machines[n.Labels[lab.LabelRack]] })
	if wait == nil {
		wait = none
	}
	return wait, err
}

// foreseen says which ring was promised to the gang's pods.
func (l *links) foreseen(ctx context.Context, gang string) string {
	list, err := l.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + gang})
	if err != nil {
		return ""
	}
	least := -1.0
	for i := range list.Items {
		if p := placementOf(&list.Items[i]); p.Ring != nil && (least < 0 || p.Ring.Worst < least) {
			least = p.Ring.Worst
		}
	}
	if least < 0 {
		return ""
	}
	return fmt.Sprintf(", a ring of %v GB/s or more in each", least)
}

func placementOf(p *corev1.Pod) v1alpha1.PodPlacement {
	var out v1alpha1.PodPlacement
	_ = json.Unmarshal([]byte(p.Annotations[v1alpha1.Placement]), &out) // what is not there stays empty
	return out
}

// small are gangs that need a part of a node.
var small = []struct {
	stack.Workload
	says string
}{
	{stack.Workload{Name: "odd", Pods: 1, GPUs: 1}, "one GPU, where that costs least"},
	{stack.Workload{Name: "pairs", Pods: 3, GPUs: 2, Annotations: map[string]string{v1alpha1.GPULinkRequired: "nvlink"}}, "three pods of two GPUs that must be linked"},
	{stack.Workload{Name: "quad", Pods: 1, GPUs: 4}, "four GPUs, with the best ring that is free"},
	{stack.Workload{Name: "single", Pods: 1, GPUs: 1}, "one more GPU"},
}

// linked submits small gangs one after the other and tells which GPUs they got.
func (d *stage) linked(ctx context.Context) error {
	d.say("3. Parts of nodes: GPUs are linked by NVSwitches in racks r0 and r1, and in pairs only in r2 and r3")
	for _, s := range small {
		w := s.Workload
		w.Namespace, w.Gang = namespace, w.Name
		d.say("   %s: %s", w.Name, s.says)
		if err := d.CreateJob(ctx, w); err != nil {
			return err
		}
		lines, err := d.links.handed(ctx, w)
		if err != nil {
			return err
		}
		for _, line := range lines {
			d.say("      %s", line)
		}
	}
	return nil
}

// handed waits until the agents have reported the GPUs of the gang's pods, and
// describes them.
func (l *links) handed(ctx context.Context, w stack.Workload) ([]string, error) {
	deadline := time.Now().Add(within)
	for {
		lines, err := l.describe(ctx, w)
		if err != nil || len(lines) == w.Pods {
			return lines, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s has GPUs for %d of %d pods after %s", w.Name, len(lines), w.Pods, within)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (l *links) describe(ctx context.Context, w stack.Workload) ([]string, error) {
	pods, err := l.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + w.Name})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of %s: %w", w.Name, err)
	}
	reports, err := l.reports.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the reports of nodes: %w", err)
	}
	var lines []string
	for _, item := range reports.Items {
		var n v1alpha1.NodeTopology
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &n); err != nil {
			return nil, fmt.Errorf("decoding the report of node %s: %w", item.GetName(), err)
		}
		for _, used := range n.Status.Pods {
			i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Name == used.Name && p.Namespace == used.Namespace })
			if i >= 0 {
				lines = append(lines, line(&pods.Items[i], n.Name, used.GPUs))
			}
		}
	}
	slices.Sort(lines)
	return lines, nil
}

func line(p *corev1.Pod, node string, gpus []int32) string {
	text := fmt.Sprintf("%s: GPU %s of %s", p.Name[:strings.LastIndexByte(p.Name, '-')], strings.Trim(fmt.Sprint(gpus), "[]"), node)
	if ring := placementOf(p).Ring; ring != nil {
		text += fmt.Sprintf(", a ring of %v GB/s, %.0f%% of the best that such a node has", ring.Worst, 100*ring.Share)
	}
	return text
}
