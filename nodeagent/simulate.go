package nodeagent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// Machine describes a node that does not exist, for Simulate.
type Machine struct {
	// Matrix is what `nvidia-smi topo -m` prints there.
	Matrix string `json:"matrix"`
	// Model as NVML names it; by it the bandwidth of NVLinks is known.
	Model     string `json:"model"`
	Driver    string `json:"driver"`
	MemoryMiB uint64 `json:"memoryMiB"`
	// Fabric is the multi-node NVLink fabric that the node has joined.
	Fabric *Fabric `json:"fabric"`
	// NUMAPolicy is the kubelet's topology manager policy.
	NUMAPolicy string `json:"numaPolicy"`
	// Unhealthy gives XIDs by the index of the GPU.
	Unhealthy map[int]int `json:"unhealthy"`
}

// ReadMachine reads a description: the YAML of a Machine, or a matrix alone.
func ReadMachine(path string) (*Machine, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the machine to simulate: %w", err)
	}
	m, err := ParseMachine(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// ParseMachine is ReadMachine for the text.
func ParseMachine(text []byte) (*Machine, error) {
	if _, err := topology.ParseMatrix(string(text)); err == nil {
		return &Machine{Matrix: string(text)}, nil
	}
	m := &Machine{}
	if err := yaml.UnmarshalStrict(text, m); err != nil {
		return nil, fmt.Errorf("neither a topology matrix nor the description of a machine: %w", err)
	}
	_, err := topology.ParseMatrix(m.Matrix)
	return m, err
}

// Simulation is a node with the GPUs of a Machine: a Driver, and Allocations that
// hand GPUs out as NVIDIA's device plugin does.
type Simulation struct {
	inventory *Inventory
	table     *topology.Table
	resource  corev1.ResourceName
	pods      func() []*corev1.Pod
	seed      string
	rule      topology.Rule
	held      map[types.UID]topology.Set
}

// Simulate makes the node. pods gives the pods that are bound to it; resource is
// what they ask GPUs by.
func Simulate(node string, m *Machine, resource corev1.ResourceName, pods func() []*corev1.Pod) (*Simulation, error) {
	matrix, err := topology.ParseMatrix(m.Matrix)
	if err != nil {
		return nil, err
	}
	graph, err := matrix.Graph(m.Model)
	if err != nil {
		return nil, err
	}
	inv := &Inventory{Driver: cmp.Or(m.Driver, "simulated"), NUMAPolicy: m.NUMAPolicy}
	for i := range graph.Len() {
		g := GPU{
			Index: i, Minor: i, UUID: fakeUUID(node, i), Model: cmp.Or(m.Model, "simulated"), Memory: m.MemoryMiB << 20,
			Bus: fmt.Sprintf("0000:%02x:00.0", 0x10+i), NUMA: graph.NUMA(i), Fabric: m.Fabric, Figures: unknownFigures,
		}
		g.Health.XID = m.Unhealthy[i]
		inv.GPUs = append(inv.GPUs, g)
		for j := i + 1; j < graph.Len(); j++ {
			inv.Links = append(inv.Links, Link{i, j, graph.Link(i, j)})
		}
	}
	rule := topology.ByLinks
	if m.NUMAPolicy == v1alpha1.SingleNUMANode {
		rule = topology.OneNUMANode
	}
	return &Simulation{
		rule: rule, inventory: inv, table: topology.NewTable(graph), resource: resource, pods: pods, seed: node,
		held: map[types.UID]topology.Set{},
	}, nil
}

// fakeUUID is the same at each start.
func fakeUUID(node string, gpu int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", node, gpu))
	s := hex.EncodeToString(sum[:16])
	return "GPU-" + strings.Join([]string{s[:8], s[8:12], s[12:16], s[16:20], s[20:]}, "-")
}

// Read implements Driver.
func (s *Simulation) Read() (*Inventory, error) { return s.inventory, nil }

// Uses implements Allocations. Pods get GPUs in the order in which they were made;
// which of several equal sets one gets is arbitrary, and the same at each run.
func (s *Simulation) Uses(context.Context, *Inventory) ([]Use, error) {
	pods := slices.Clone(s.pods())
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	alive := map[types.UID]bool{}
	for _, p := range pods {
		alive[p.UID] = p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
	}
	free := s.table.All()
	for _, g := range s.inventory.GPUs {
		if g.Health.Unhealthy() != "" {
			free &^= topology.SetOf(g.Index)
		}
	}
	for uid, set := range s.held {
		if !alive[uid] {
			delete(s.held, uid)
			continue
		}
		free &^= set
	}
	var out []Use
	for _, p := range pods {
		if !alive[p.UID] {
			continue
		}
		set, ok := s.held[p.UID]
		if !ok {
			set = s.pick(p, free)
			free &^= set
		}
		if set != 0 {
			s.held[p.UID] = set
			out = append(out, Use{Namespace: p.Namespace, Name: p.Name, GPUs: set.GPUs()})
		}
	}
	return out, nil
}

// pick chooses among what the device plugin may hand out.
func (s *Simulation) pick(p *corev1.Pod, free topology.Set) topology.Set {
	sets := s.table.Predict(free, gpusOf(p, s.resource), s.rule).Sets
	if len(sets) == 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(s.seed + "/" + p.Namespace + "/" + p.Name))
	return sets[binary.BigEndian.Uint64(sum[:8])%uint64(len(sets))]
}

// gpusOf is how many GPUs the pod asks for: extended resources have limits.
func gpusOf(p *corev1.Pod, resource corev1.ResourceName) int {
	n := int64(0)
	for _, c := range p.Spec.Containers {
		q := c.Resources.Limits[resource]
		n += q.Value()
	}
	return int(n)
}
