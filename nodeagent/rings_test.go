package nodeagent

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The figures of DGX-1V's hybrid cube mesh: NVLinks of 25.8 GB/s, some pairs have two.
func TestRingsOfFreeGPUs(t *testing.T) {
	matrix, err := os.ReadFile("../topology/testdata/matrices/dgx1-v100-8x-hybrid-cube-mesh.txt")
	if err != nil {
		t.Fatal(err)
	}
	simulation, err := Simulate("n", &Machine{Matrix: string(matrix), Model: "Tesla V100-SXM2-32GB"}, "nvidia.com/gpu", func() []*corev1.Pod { return nil })
	if err != nil {
		t.Fatal(err)
	}
	inv := simulation.inventory
	all := ` 2 GPUs: 51.6 GB/s, 8 of 28 sets
 3 GPUs: 25.8 GB/s, 8 of 56 sets
 4 GPUs: 25.8 GB/s, 8 of 70 sets
 5 GPUs: 25.8 GB/s, 24 of 56 sets
 6 GPUs: 25.8 GB/s, 28 of 28 sets
 7 GPUs: 25.8 GB/s, 8 of 8 sets
 8 GPUs: 51.6 GB/s, 1 of 1 sets
`
	if got := rings(inv, poll{inventory: inv}.free()); got != all {
		t.Errorf("all free:\n%s\nwant\n%s", got, all)
	}
	if got, want := rings(inv, map[int]bool{0: true, 5: true}), " 2 GPUs: 7.9 GB/s, 1 of 1 sets\n"; got != want {
		t.Errorf("two that no NVLink joins: got %q, want %q", got, want)
	}
	if got := rings(inv, map[int]bool{3: true}); got != "" {
		t.Errorf("one free: got %q", got)
	}
	for i := len(inv.GPUs); i < 17; i++ {
		inv.GPUs = append(inv.GPUs, GPU{Index: i})
	}
	if got, want := rings(inv, nil), "not ranked: 17 GPUs on one node; links are ranked for up to 16\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
