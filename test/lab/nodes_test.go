package lab

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestParseNodes(t *testing.T) {
	pools, err := ParseNodes([]byte(`
nodes:
- {name: "gpu-{n}", count: 5, gpus: 8, model: H100, perRack: 2, perBlock: 4, labels: {pool: train}, taints: [{key: gpu, effect: NoSchedule}]}
- {name: cpu, cpu: "4", memory: 8Gi, resources: {rdma/hca: "2"}}
`))
	if err != nil {
		t.Fatal(err)
	}
	last := pools[0].Node(4)
	for key, want := range map[string]string{
		corev1.LabelHostname: "gpu-4", LabelRack: "r2", LabelBlock: "b1", LabelProduct: "H100", LabelGPUs: "8", "pool": "train", LabelClique: "", LabelZone: "",
	} {
		if got := last.Labels[key]; got != want {
			t.Errorf("label %s=%q, want %q", key, got, want)
		}
	}
	if q := last.Status.Allocatable[GPUResource]; q.Value() != 8 || len(last.Spec.Taints) != 1 {
		t.Errorf("got %v, %v", last.Status.Allocatable, last.Spec.Taints)
	}
	cpu := pools[1].Node(0)
	if q := cpu.Status.Allocatable["rdma/hca"]; cpu.Name != "cpu" || q.Value() != 2 || cpu.Status.Allocatable.Pods().Value() != 110 {
		t.Errorf("got %s %v", cpu.Name, cpu.Status.Allocatable)
	}
}

func TestParseNodesNamesWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		`nodes: [{name: a, gpu: 8}]`:                                `unknown field "gpu"`,
		`nodes: [{name: "A_"}]`:                                     `nodes[0]: name="A_"`,
		`nodes: [{count: 2}]`:                                       `nodes[0]: name=""`,
		`nodes: [{name: a}, {name: b, gpus: -1}]`:                   `nodes[1]: gpus=-1`,
		`nodes: [{name: a, count: 1000000}]`:                        `count=1000000`,
		`nodes: [{name: a, cpu: many}]`:                             `cpu="many"`,
		`nodes: [{name: a, memory: "-1"}]`:                          `memory="-1"`,
		`nodes: [{name: a, resources: {"a b": "1"}}]`:               `"a b"`,
		`nodes: [{name: a, labels: {x: "a b"}}]`:                    `x="a b"`,
		`nodes: [{name: a, model: "H 100"}]`:                        `model="H 100"`,
		`nodes: 7`:                                                  `decoding`,
		`nodes: [{name: a, count: 60000}, {name: b, count: 60000}]`: `120000 nodes`,
	} {
		if _, err := ParseNodes([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

func FuzzParseNodes(f *testing.F) {
	f.Add([]byte(`nodes: [{name: "gpu-{n}", count: 2, gpus: 8, perRack: 1, resources: {a/b: "1"}}]`))
	f.Fuzz(func(_ *testing.T, text []byte) {
		pools, err := ParseNodes(text)
		if err != nil {
			return
		}
		for i := range pools {
			_ = pools[i].Node(0) // what is accepted can be made
		}
	})
}
