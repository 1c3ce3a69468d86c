//go:build cgo

package nodeagent

import (
	"log/slog"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// apiServer has the node n and no report of it yet.
func apiServer() dynamic.Interface {
	node := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "n", "uid": "u"}}}
	kinds := map[schema.GroupVersionResource]string{v1alpha1.NodeTopologies: "NodeTopologyList"}
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme, kinds, node)
}

// dgx is the agent of a DGX-1V whose GPUs are held by four pods, two each: NVML's
// own loader over the fake library, a kubelet's socket.
func dgx(t testing.TB) *Agent {
	t.Helper()
	k := &kubelet{}
	for _, p := range [][]string{{"a", "GPU-0", "GPU-1"}, {"b", "GPU-2", "GPU-3"}, {"c", "GPU-4", "GPU-5"}, {"d", "GPU-6", "GPU-7"}} {
		k.list = append(k.list, pod(p[0], append([]string{"nvidia.com/gpu"}, p[1:]...)))
	}
	machine := newFake(t, "new", facts(t, "dgx1-v100-8x-hybrid-cube-mesh", "Tesla V100-SXM2-32GB"))
	return New(Options{
		Driver: machine.nvml, Allocations: k.serve(t), Publisher: NewPublisher(apiServer(), "n"),
		Interval: 5 * time.Second, Heartbeat: time.Minute, Now: func() time.Time { return noon },
		Metrics: NewMetrics("n", nil, prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	})
}

func TestPollReportsWhatTheNodeHas(t *testing.T) {
	a := dgx(t)
	if err := a.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	object, err := a.opts.Publisher.client.Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(object)
	if err != nil {
		t.Fatal(err)
	}
	if s := got.Status; s.GPUCount != 8 || s.FreeCount != 0 || len(s.Pods) != 4 || s.Conditions[0].Message != "all was read" {
		t.Errorf("got %d GPUs, %d free, pods %+v, %+v", s.GPUCount, s.FreeCount, s.Pods, s.Conditions)
	}
}

// TestMemoryStaysFlat: ten thousand polls leave nothing behind.
func TestMemoryStaysFlat(t *testing.T) {
	if testing.Short() {
		t.Skip("ten thousand polls")
	}
	a := dgx(t)
	polls := func(n int) uint64 {
		for range n {
			if err := a.Poll(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := polls(100)
	if after := polls(10_000); after > before+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}

// BenchmarkPoll: a whole poll but for the real driver's own time; core is the share
// of one core that this takes at the default interval.
func BenchmarkPoll(b *testing.B) {
	a := dgx(b)
	b.ReportAllocs()
	before := cpu(b)
	for b.Loop() {
		if err := a.Poll(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N)/a.opts.Interval.Seconds(), "core")
}

// cpu is the CPU time that the process has taken.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
