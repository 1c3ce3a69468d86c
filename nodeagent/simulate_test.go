package nodeagent

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/topology"
)

const pairsFile = "../topology/testdata/matrices/pcie-8x-nv12-pairs.txt"

func gpuPod(name string, gpus int64, age int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(age) * time.Second))},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)},
		}}}},
	}
}

func TestSimulationHandsOutLikeTheDevicePlugin(t *testing.T) {
	m, err := ReadMachine(pairsFile)
	if err != nil {
		t.Fatal(err)
	}
	var pods []*corev1.Pod
	s, err := Simulate("n1", m, "nvidia.com/gpu", func() []*corev1.Pod { return pods })
	if err != nil {
		t.Fatal(err)
	}
	uses := func() map[string]topology.Set {
		t.Helper()
		list, err := s.Uses(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]topology.Set{}
		taken := topology.Set(0)
		for _, u := range list {
			set := topology.SetOf(u.GPUs...)
			if taken&set != 0 {
				t.Fatalf("a GPU twice: %+v", list)
			}
			taken |= set
			out[u.Name] = set
		}
		return out
	}
	pairs := map[topology.Set]bool{topology.SetOf(0, 2): true, topology.SetOf(1, 3): true, topology.SetOf(4, 5): true, topology.SetOf(6, 7): true}
	pods = []*corev1.Pod{gpuPod("b", 2, 2), gpuPod("a", 2, 1), gpuPod("cpu", 0, 0)}
	first := uses()
	if len(first) != 2 || !pairs[first["a"]] || !pairs[first["b"]] {
		t.Errorf("got %v", first)
	}
	pods = append(pods, gpuPod("c", 3, 3), gpuPod("too much", 2, 4))
	second := uses()
	if second["a"] != first["a"] || second["b"] != first["b"] || second["c"].Len() != 3 || second["too much"] != 0 {
		t.Errorf("got %v", second)
	}
	pods[1].Status.Phase = corev1.PodSucceeded
	if third := uses(); third["a"] != 0 || third["too much"].Len() != 2 {
		t.Errorf("after one has ended: %v", third)
	}
	pods = nil
	if last := uses(); len(last) != 0 {
		t.Errorf("after all are gone: %v", last)
	}
}

func TestMachineDescriptions(t *testing.T) {
	matrix, err := os.ReadFile(pairsFile)
	if err != nil {
		t.Fatal(err)
	}
	text := "model: NVIDIA A100-PCIE-40GB\nmemoryMiB: 40960\nunhealthy: {3: 79}\nfabric: {cluster: c, clique: 7}\nmatrix: |\n  " + strings.ReplaceAll(string(matrix), "\n", "\n  ")
	m, err := ParseMachine([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Simulate("n1", m, "nvidia.com/gpu", nil)
	if err != nil {
		t.Fatal(err)
	}
	inv, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	g := inv.GPUs[3]
	if g.Health.Unhealthy() != "XID 79" || g.Model != "NVIDIA A100-PCIE-40GB" || g.Memory != 40960<<20 || g.NUMA != 0 || !reflect.DeepEqual(g.Fabric, &Fabric{"c", 7}) {
		t.Errorf("got %+v", g)
	}
	if l := inv.Links[1]; l.A != 0 || l.B != 2 || l.NVLinks != 12 || l.GBps != 300 {
		t.Errorf("got %+v", l)
	}
	other, err := Simulate("n2", m, "nvidia.com/gpu", nil)
	if err != nil {
		t.Fatal(err)
	}
	if there, _ := other.Read(); there.GPUs[0].UUID == inv.GPUs[0].UUID {
		t.Error("two nodes share a GPU")
	}
	for name, bad := range map[string]string{"nothing": "", "unknown key": "matix: x\n", "no matrix": "model: x\n", "cut": "matrix: |\n  \tGPU0\tGPU1\n"} {
		if _, err := ParseMachine([]byte(bad)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := ReadMachine(t.TempDir() + "/none"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("got %v", err)
	}
}

func FuzzParseMachine(f *testing.F) {
	f.Add([]byte("matrix: |\n  \tGPU0\n  GPU0\t X \n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := ParseMachine(text)
		if err != nil {
			return
		}
		if _, err := Simulate("n", m, "nvidia.com/gpu", func() []*corev1.Pod { return nil }); err != nil && !strings.Contains(err.Error(), "GPUs on one node") {
			t.Fatal(fmt.Errorf("read, and then: %w", err))
		}
	})
}
