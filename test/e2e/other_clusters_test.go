package e2e

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/lockstep-scheduler/lockstep/test/stack"
)

// newWorld starts a cluster for one test.
func newWorld(t *testing.T, o stack.Options) *world {
	t.Helper()
	o.LogDir = os.Getenv("LOCKSTEP_E2E_LOGS")
	if o.LogDir != "" {
		o.LogDir += "/" + t.Name()
		if err := os.MkdirAll(o.LogDir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s, err := stack.Start(context.WithoutCancel(t.Context()), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &world{Stack: s}
}

// TestCase_F6_AThousandMembersOnAThousandNodes: kube-scheduler looks at a sample of
// so many nodes, and still tries each member on its own node, and on no other.
func TestCase_F6_AThousandMembersOnAThousandNodes(t *testing.T) {
	w := newWorld(t, stack.Options{
		Nodes:    "nodes: [{name: \"gpu-{n}\", count: 1000, gpus: 8, perRack: 16, perBlock: 128}]",
		Replicas: 1, ExtenderArgs: []string{"--kube-api-qps=2000", "--kube-api-burst=4000"},
	})
	s := w.begin(t)
	s.job(stack.Workload{Name: "train", Gang: "train", Pods: 1000, GPUs: 8})
	s.await(3*time.Minute, bound("train", 1000))
	s.settled(time.Second)
	names, calls := 0.0, 0.0
	families, err := s.Replicas[0].Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families["lockstep_extender_names_per_call"].GetMetric() {
		if m.GetLabel()[0].GetValue() == "filter" {
			names += m.GetHistogram().GetSampleSum()
			calls += float64(m.GetHistogram().GetSampleCount())
		}
	}
	if calls < 1000 || names > calls {
		t.Errorf("%v calls of Filter offered %v nodes; want one each", calls, names)
	}
}

// TestCase_F2_PodsWithoutGatesAreWoken: without the admission policy members are
// refused until the plan exists, and start within seconds of the last one's coming.
func TestCase_F2_PodsWithoutGatesAreWoken(t *testing.T) {
	w := newWorld(t, stack.Options{Nodes: "nodes: [{name: \"gpu-{n}\", count: 4, gpus: 8}]", Replicas: 1, NoAdmission: true})
	s := w.begin(t)
	g := s.workload(stack.Workload{Name: "g", Gang: "g", Pods: 4, GPUs: 8})
	if err := s.CreatePods(t.Context(), g.Pod(0), g.Pod(1), g.Pod(2)); err != nil {
		t.Fatal(err)
	}
	s.awaitMessage("g", "3 of 4 members exist")
	if err := s.CreatePods(t.Context(), g.Pod(3)); err != nil {
		t.Fatal(err)
	}
	s.await(20*time.Second, bound("g", 4))
	s.settled(time.Second)
}

// TestTLS: with the certificates that the shipped script makes, and a demand for a
// client certificate.
func TestTLS(t *testing.T) {
	w := newWorld(t, stack.Options{Nodes: "nodes: [{name: \"gpu-{n}\", count: 2, gpus: 8}]", Replicas: 1, TLS: true})
	s := w.begin(t)
	s.job(stack.Workload{Name: "g", Gang: "g", Pods: 2, GPUs: 8})
	s.await(30*time.Second, bound("g", 2))
	s.settled(time.Second)
}

// TestEmbeddedStoreIsRebuilt: the only replica dies with everything that it had
// reserved; the next one plans from the pods as they are.
func TestEmbeddedStoreIsRebuilt(t *testing.T) {
	w := newWorld(t, stack.Options{Nodes: "nodes: [{name: \"gpu-{n}\", count: 4, gpus: 8}]", Replicas: 1})
	s := w.begin(t)
	s.job(stack.Workload{Name: "running", Gang: "running", Pods: 2, GPUs: 8})
	s.await(30*time.Second, bound("running", 2))
	s.hang(func() {
		// One is tied to its nodes, the other nominated.
		s.job(stack.Workload{Name: "tied", Gang: "tied", Pods: 2, GPUs: 4})
		s.awaitPlaced("tied", 2)
		s.create(stack.Workload{Name: "moved", Gang: "moved", Pods: 2, GPUs: 4})
		s.awaitPlaced("moved", 2)
		if err := s.Replicas[0].Kill(); err != nil {
			t.Fatal(err)
		}
		s.Replicas = nil
	})
	if _, err := s.AddReplica(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.await(60*time.Second, bound("tied", 2))
	s.await(60*time.Second, bound("moved", 2))
	s.settled(time.Second)
}
