package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"
)

// NodePool describes nodes of one kind.
type NodePool struct {
	// Name of the nodes; {n} is replaced by 0, 1, ... and appended if it is absent
	// and there are several.
	Name  string `json:"name"`
	Count int    `json:"count"`
	// GPUs of each node and their model, the label nvidia.com/gpu.product.
	GPUs  int    `json:"gpus,omitempty"`
	Model string `json:"model,omitempty"`
	// CPU, Memory and Pods are allocatable; the defaults are 96, 1Ti and 110.
	CPU    string `json:"cpu,omitempty"`
	Memory string `json:"memory,omitempty"`
	Pods   int    `json:"pods,omitempty"`
	// Resources are further allocatable resources.
	Resources map[string]string `json:"resources,omitempty"`
	// PerRack and the like group that many nodes each under a label of the level;
	// 0: no such label.
	PerClique int `json:"perClique,omitempty"`
	PerRack   int `json:"perRack,omitempty"`
	PerBlock  int `json:"perBlock,omitempty"`
	PerZone   int `json:"perZone,omitempty"`

	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
}

// Labels of the levels that a pool can group its nodes by.
const (
	LabelClique  = "nvidia.com/gpu.clique"
	LabelRack    = "topology.kubernetes.io/rack"
	LabelBlock   = "topology.kubernetes.io/block"
	LabelZone    = corev1.LabelTopologyZone
	LabelProduct = "nvidia.com/gpu.product"
	LabelGPUs    = "nvidia.com/gpu.count"
)

// GPUResource is what a pool's GPUs are offered as.
const GPUResource = "nvidia.com/gpu"

const maxNodes = 100_000

// ParseNodes reads a description of nodes:
//
//	nodes:
//	- name: gpu-{n}
//	  count: 16
//	  gpus: 8
//	  model: H100
//	  perRack: 4
//	  taints: [{key: nvidia.com/gpu, effect: NoSchedule}]
//
// Unknown fields and values that the API server would refuse are errors that name
// the pool, the field and the value.
func ParseNodes(text []byte) ([]NodePool, error) {
	var file struct {
		Nodes []NodePool `json:"nodes"`
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("decoding the description of nodes: %w", err)
	}
	total := 0
	for i := range file.Nodes {
		pool := &file.Nodes[i]
		pool.Count = cmp.Or(pool.Count, 1)
		pool.CPU, pool.Memory, pool.Pods = cmp.Or(pool.CPU, "96"), cmp.Or(pool.Memory, "1Ti"), cmp.Or(pool.Pods, 110)
		if err := pool.check(); err != nil {
			return nil, fmt.Errorf("nodes[%d]: %w", i, err)
		}
		total += pool.Count
	}
	if total > maxNodes {
		return nil, fmt.Errorf("%d nodes; there may be at most %d", total, maxNodes)
	}
	return file.Nodes, nil
}

func (p *NodePool) check() error {
	for field, n := range map[string]int{
		"count": p.Count, "gpus": p.GPUs, "pods": p.Pods, "perClique": p.PerClique,
		"perRack": p.PerRack, "perBlock": p.PerBlock, "perZone": p.PerZone,
	} {
		if n < 0 || n > maxNodes {
			return fmt.Errorf("%s=%d: want 0 to %d", field, n, maxNodes)
		}
	}
	if p.Name == "" {
		return errors.New(`name="": it must not be empty`)
	}
	if errs := validation.IsDNS1123Subdomain(p.nodeName(p.Count)); len(errs) > 0 {
		return fmt.Errorf("name=%q: %s", p.Name, errs[0])
	}
	quantities := map[string]string{"cpu": p.CPU, "memory": p.Memory}
	maps.Copy(quantities, p.Resources)
	for name, q := range quantities {
		if errs := validation.IsQualifiedName(name); len(errs) > 0 {
			return fmt.Errorf("resources: %q: %s", name, errs[0])
		}
		if parsed, err := resource.ParseQuantity(q); err != nil || parsed.Sign() < 0 {
			return fmt.Errorf("%s=%q: want a quantity such as 8 or 64Gi", name, q)
		}
	}
	for key, value := range p.Labels {
		if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
			return fmt.Errorf("labels: %s=%q: %s", key, value, errs[0])
		}
	}
	if errs := validation.IsValidLabelValue(p.Model); len(errs) > 0 {
		return fmt.Errorf("model=%q: %s", p.Model, errs[0])
	}
	return nil
}

// nodeName is the name of the n-th node of the pool.
func (p *NodePool) nodeName(n int) string {
	switch {
	case strings.Contains(p.Name, "{n}"):
		return strings.ReplaceAll(p.Name, "{n}", fmt.Sprint(n))
	case p.Count > 1:
		return fmt.Sprintf("%s%d", p.Name, n)
	}
	return p.Name
}

// Node gives the n-th node of the pool, Ready.
func (p *NodePool) Node(n int) *corev1.Node {
	name := p.nodeName(n)
	labels := map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
	}
	if p.GPUs > 0 {
		labels[LabelGPUs] = fmt.Sprint(p.GPUs)
	}
	if p.Model != "" {
		labels[LabelProduct] = p.Model
	}
	for _, level := range []struct {
		label, name string
		per         int
	}{{LabelClique, "clique", p.PerClique}, {LabelRack, "r", p.PerRack}, {LabelBlock, "b", p.PerBlock}, {LabelZone, "z", p.PerZone}} {
		if level.per > 0 {
			labels[level.label] = fmt.Sprintf("%s%d", level.name, n/level.per)
		}
	}
	maps.Copy(labels, p.Labels)
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(p.CPU), corev1.ResourceMemory: resource.MustParse(p.Memory),
		corev1.ResourcePods: *resource.NewQuantity(int64(p.Pods), resource.DecimalSI),
	}
	if p.GPUs > 0 {
		capacity[GPUResource] = *resource.NewQuantity(int64(p.GPUs), resource.DecimalSI)
	}
	for name, q := range p.Resources {
		capacity[corev1.ResourceName(name)] = resource.MustParse(q)
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: p.Taints},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity, Phase: corev1.NodeRunning,
			Conditions: []corev1.NodeCondition{ready(true)},
			NodeInfo:   corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: "v1.37.2"},
		},
	}
}

func ready(yes bool) corev1.NodeCondition {
	now := metav1.Now()
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Lab", LastHeartbeatTime: now, LastTransitionTime: now}
	if !yes {
		c.Status = corev1.ConditionFalse
	}
	return c
}

// createAtOnce bounds the nodes that are created at the same time.
const createAtOnce = 32

// CreateNodes creates the nodes of the pools and waits until none of them carries
// the taint that keeps pods from a node that is not ready yet.
func (l *Lab) CreateNodes(ctx context.Context, pools []NodePool) error {
	nodes := make(chan *corev1.Node)
	go func() {
		defer close(nodes)
		for i := range pools {
			for n := range pools[i].Count {
				nodes <- pools[i].Node(n)
			}
		}
	}()
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for range createAtOnce {
		wg.Go(func() {
			for node := range nodes {
				if _, err := l.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("creating node %s: %w", node.Name, err))
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		return errors.Join(errs[:min(len(errs), 5)]...)
	}
	return l.awaitNodes(ctx)
}

const nodesWithin = 2 * time.Minute

func (l *Lab) awaitNodes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodesWithin)
	defer cancel()
	for {
		list, err := l.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return fmt.Errorf("waiting for the nodes to be ready: %w", err)
		}
		waiting := 0
		for i := range list.Items {
			for _, taint := range list.Items[i].Spec.Taints {
				if taint.Key == corev1.TaintNodeNotReady {
					waiting++
				}
			}
		}
		if waiting == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d nodes are not ready: %w", waiting, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// UpdateNode changes a node: its spec and labels, then its status.
func (l *Lab) UpdateNode(ctx context.Context, name string, change func(*corev1.Node)) error {
	nodes := l.client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(node)
		updated, err := nodes.Update(ctx, node, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		node.ResourceVersion = updated.ResourceVersion
		_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("changing node %s: %w", name, err)
	}
	return nil
}

// Cordon makes a node unschedulable, or schedulable again.
func (l *Lab) Cordon(ctx context.Context, name string, cordoned bool) error {
	return l.UpdateNode(ctx, name, func(n *corev1.Node) { n.Spec.Unschedulable = cordoned })
}

// SetNodeReady changes the node's condition Ready.
func (l *Lab) SetNodeReady(ctx context.Context, name string, yes bool) error {
	return l.UpdateNode(ctx, name, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{ready(yes)}
	})
}

// DeleteNode deletes a node. Its pods stay until they are collected.
func (l *Lab) DeleteNode(ctx context.Context, name string) error {
	if err := l.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting node %s: %w", name, err)
	}
	return nil
}
