package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/nodeagent"
	"github.com/lockstep-scheduler/lockstep/test/stack"
)

// agentOn is a node agent that simulates the machine of the matrix on the node, with
// the rights of the configuration.
func agentOn(t *testing.T, config *rest.Config, node, matrix string, pods func() []*corev1.Pod) *nodeagent.Agent {
	t.Helper()
	m, err := nodeagent.ReadMachine(filepath.Join(stack.Root(), "topology/testdata/matrices", matrix+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := nodeagent.Simulate(node, m, v1alpha1.GPUResource, pods)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return nodeagent.New(nodeagent.Options{
		Driver: s, Allocations: s, Publisher: nodeagent.NewPublisher(client, node), Interval: time.Second, Heartbeat: time.Minute,
		Metrics: nodeagent.NewMetrics(node, nil, prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
}

// TestOnlyItsOwnAgentReportsANode: under the shipped rights and policy, an agent
// writes the NodeTopology of its own node, and of no other; the report is kept as it
// was written, and goes with the node.
func TestOnlyItsOwnAgentReportsANode(t *testing.T) {
	ctx := t.Context()
	if err := stack.Apply(ctx, shared.Lab.Config(), filepath.Join(stack.Root(), "deploy/manifests/nodeagent-rbac.yaml")); err != nil {
		t.Fatal(err)
	}
	node, err := shared.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "agent-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	forget := func(ctx context.Context) {
		if err := shared.Client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Cleanup(func() { forget(context.WithoutCancel(ctx)) })
	own, err := shared.Lab.NodeAccountConfig(ctx, "lockstep-system", "lockstep-nodeagent", node.Name)
	if err != nil {
		t.Fatal(err)
	}
	unbound, err := shared.Lab.ServiceAccountConfig(ctx, "lockstep-system", "lockstep-nodeagent")
	if err != nil {
		t.Fatal(err)
	}

	var pods []*corev1.Pod
	agent := agentOn(t, own, node.Name, "dgx1-v100-8x-hybrid-cube-mesh", func() []*corev1.Pod { return pods })
	await(t, time.Minute, func() error { return agent.Poll(ctx) }) // until the API server knows the type
	client, err := dynamic.NewForConfig(shared.Lab.Config())
	if err != nil {
		t.Fatal(err)
	}
	read := func() v1alpha1.NodeTopology {
		t.Helper()
		object, err := client.Resource(v1alpha1.NodeTopologies).Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var out v1alpha1.NodeTopology
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := read()
	want, _ := agent.Once(ctx)
	want.HeartbeatTime, want.Conditions = first.Status.HeartbeatTime, first.Status.Conditions
	if diff := cmp.Diff(want, first.Status); diff != "" {
		t.Errorf("the report was not kept as written (-want +got):\n%s", diff)
	}
	pods = []*corev1.Pod{(&stack.Workload{Namespace: "ns", Name: "p", Pods: 1, GPUs: 2}).Pod(0)}
	pods[0].UID = "p"
	if err := agent.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	second := read()
	if second.Status.Generation != first.Status.Generation+1 || second.Status.FreeCount != 6 || len(second.Status.Pods) != 1 {
		t.Errorf("with a pod: generation %d after %d, %d free, pods %v", second.Status.Generation, first.Status.Generation, second.Status.FreeCount, second.Status.Pods)
	}
	if err := agent.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	if third := read(); third.ResourceVersion != second.ResourceVersion {
		t.Error("a report that has not changed was written again")
	}

	for name, c := range map[string]struct {
		config *rest.Config
		node   string
		want   string
	}{
		"another node's": {own, "gpu-0", "may write the NodeTopology of that name only"},
		"a loose token":  {unbound, "gpu-0", "must be bound to a node"},
	} {
		await(t, time.Minute, func() error { // until the policy is in force
			if err := client.Resource(v1alpha1.NodeTopologies).Delete(ctx, c.node, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			err := agentOn(t, c.config, c.node, "4x-pcie-phb", noPods).Poll(ctx)
			if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
				return errors.Join(fmt.Errorf("%s: was not refused with %q", name, c.want), err)
			}
			return nil
		})
	}

	forget(ctx)
	await(t, time.Minute, func() error {
		_, err := client.Resource(v1alpha1.NodeTopologies).Get(ctx, node.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the report of a node that is gone is still there"), err)
		}
		return nil
	})
}

func noPods() []*corev1.Pod { return nil }

// await tries again until there is no error.
func await(t *testing.T, limit time.Duration, try func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
