package stack

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-scheduler/lockstep/nodeagent"
	"github.com/lockstep-scheduler/lockstep/test/lab"
)

// agentInterval is how often the simulated agents look at their nodes.
const agentInterval = 200 * time.Millisecond

const byNode = "node"

// StartAgents runs a node agent for each node of which machine gives a description,
// all in this process, until ctx ends. They hand GPUs out to the nodes' pods as
// NVIDIA's device plugin does, and report them. It returns when every node has a
// report; wait waits until all have ended.
func (s *Stack) StartAgents(ctx context.Context, machine func(node *corev1.Node) *nodeagent.Machine) (wait func(), err error) {
	client, err := dynamic.NewForConfig(s.Lab.Config())
	if err != nil {
		return nil, fmt.Errorf("making a client for the agents: %w", err)
	}
	nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing the nodes for the agents: %w", err)
	}
	pods, err := s.podsByNode(ctx)
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	for i := range nodes.Items {
		node := &nodes.Items[i]
		m := machine(node)
		if m == nil {
			continue
		}
		sim, err := nodeagent.Simulate(node.Name, m, lab.GPUResource, func() []*corev1.Pod { return pods(node.Name) })
		if err != nil {
			return nil, fmt.Errorf("simulating node %s: %w", node.Name, err)
		}
		agent := nodeagent.New(nodeagent.Options{
			Driver: sim, Allocations: sim, Publisher: nodeagent.NewPublisher(client, node.Name),
			Interval: agentInterval, Heartbeat: time.Minute,
			Metrics: nodeagent.NewMetrics(node.Name, nil, prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
		})
		if err := poll(ctx, time.Minute, agent.Poll); err != nil {
			return nil, fmt.Errorf("the first report of node %s: %w", node.Name, err)
		}
		running.Go(func() { agent.Run(ctx) })
	}
	return running.Wait, nil
}

// podsByNode watches all pods.
func (s *Stack) podsByNode(ctx context.Context) (func(node string) []*corev1.Pod, error) {
	factory := informers.NewSharedInformerFactory(s.Client, 0)
	informer := factory.Core().V1().Pods().Informer()
	err := informer.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) {
		return []string{obj.(*corev1.Pod).Spec.NodeName}, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("watching pods for the agents: %w", err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return func(node string) []*corev1.Pod {
		list, err := informer.GetIndexer().ByIndex(byNode, node)
		if err != nil {
			return nil // there is such an index
		}
		out := make([]*corev1.Pod, 0, len(list))
		for _, obj := range list {
			out = append(out, obj.(*corev1.Pod))
		}
		return out
	}, nil
}
