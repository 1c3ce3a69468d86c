package gang

import (
	"fmt"
	"os"
	"testing"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// The classes of the benchmarks.
const (
	oneGPU ClassID = iota
	wholeNode
	launcher
	twoNodesGPUs
)

// benchSnapshot is a cluster of 8-GPU nodes in racks of 16 and blocks of 8 racks,
// of which every third node is partly used. Without labels, no two nodes share a
// domain below the cluster.
func benchSnapshot(nodes int, labelled bool) *Snapshot {
	list := make([]topology.Node, 0, nodes)
	for i := range nodes {
		n := topology.Node{Name: fmt.Sprintf("node-%d", i)}
		if labelled {
			n.Labels = map[string]string{
				"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/block": fmt.Sprintf("b%d", i/128),
				"topology.kubernetes.io/rack": fmt.Sprintf("r%d", i/16),
			}
		}
		list = append(list, n)
	}
	s := &Snapshot{
		Tree:      topology.Build(topology.DefaultLevels(), list),
		Resources: []string{"cpu", "ephemeral-storage", "memory", "nvidia.com/gpu", "pods"}, GPU: 3,
		Classes: []Class{
			oneGPU:       {Request: []int64{8_000, 0, 100 << 30, 1, 1}},
			wholeNode:    {Request: []int64{64_000, 0, 800 << 30, 8, 1}},
			launcher:     {Request: []int64{1_000, 0, 1 << 30, 0, 1}},
			twoNodesGPUs: {Request: []int64{64_000, 0, 800 << 30, 16, 1}},
		},
	}
	for i := range nodes {
		node := []int64{96_000, 1 << 40, 1 << 40, 8, 110}
		s.Allocatable = append(s.Allocatable, node...)
		if i%3 == 0 {
			node[0] -= 24_000
			node[3] -= 3
		}
		s.Free = append(s.Free, node...)
	}
	return s
}

// linked is the same cluster with what is known of its GPUs: two thirds of the nodes
// have NVSwitches, the others are DGX-1.
func linked(b *testing.B, of *Snapshot) *Snapshot {
	s := of.Clone()
	var tables []*topology.Table
	for _, name := range []string{"h100-8x-sxm-nv18", "dgx1-v100-8x-hybrid-cube-mesh", "h100-8x-sxm-nv18"} {
		text, err := os.ReadFile("../topology/testdata/matrices/" + name + ".txt")
		if err != nil {
			b.Fatal(err)
		}
		m, err := topology.ParseMatrix(string(text))
		if err != nil {
			b.Fatal(err)
		}
		g, err := m.Graph("")
		if err != nil {
			b.Fatal(err)
		}
		tables = append(tables, catalog.Table(g))
	}
	for i := range s.Tree.Len() {
		g := NodeGPUs{Table: tables[i%3]}
		g.Free = g.Table.All()
		for g.Free.Len() > int(s.Row(i)[s.GPU]) {
			g.Free &= g.Free - 1
		}
		s.NodeGPUs = append(s.NodeGPUs, g)
	}
	return s
}

func seatsOf(n int, class ClassID, role string) []Seat {
	seats := make([]Seat, 0, n)
	for i := range n {
		seats = append(seats, Seat{UID: fmt.Sprintf("%s-uid-%d", role, i), Name: fmt.Sprintf("%s-%d", role, i), Role: role, Class: class, Rank: i})
	}
	return seats
}

// BenchmarkPlace has gangs that fit and gangs that do not.
func BenchmarkPlace(b *testing.B) {
	run := func(name string, s *Snapshot, r *Request, fits bool) {
		b.Run(name, func(b *testing.B) {
			var p Planner
			b.ReportAllocs()
			for b.Loop() {
				if plan, why := p.Place(s, r); (plan != nil) != fits {
					b.Fatalf("placed: %v (%v)", plan != nil, why)
				}
			}
		})
	}
	for _, nodes := range []int{1_000, 5_000, 15_000} {
		s := benchSnapshot(nodes, true)
		flat := benchSnapshot(nodes, false)
		linked := linked(b, s)
		at := fmt.Sprintf("nodes=%d/", nodes)
		run(at+"members=64/linked/gpu=1", linked, &Request{Seats: seatsOf(64, oneGPU, "w")}, true)
		run(at+"members=64/linked/gpu=8", linked, &Request{Seats: seatsOf(64, wholeNode, "w")}, true)
		for _, members := range []int{64, 1_024, 4_096} {
			gang := at + fmt.Sprintf("members=%d/", members)
			run(gang+"gpu=1", s, &Request{Seats: seatsOf(members, oneGPU, "worker")}, true)
			run(gang+"gpu=8", s, &Request{Seats: seatsOf(members, wholeNode, "worker")}, members <= nodes*2/3)
			run(gang+"launcher+gpu=1", s, &Request{Seats: append(seatsOf(1, launcher, "launcher"), seatsOf(members, oneGPU, "worker")...)}, true)
			run(gang+"unlabelled/gpu=1", flat, &Request{Seats: seatsOf(members, oneGPU, "worker")}, true)
			run(gang+"cpu", s, &Request{Seats: seatsOf(members, launcher, "worker")}, true)
		}
		whole := append(seatsOf(nodes*2/3, wholeNode, "worker"), seatsOf(1, oneGPU, "extra")...)
		run(at+"no-host-for-both-kinds", s, &Request{Seats: append(seatsOf(1, wholeNode, "big"), seatsOf(1, oneGPU, "small")...)}, true)
		run(at+"all-whole-nodes-and-one-more", s, &Request{Seats: whole}, true)
		run(at+"refused/required=rack", s, &Request{Seats: seatsOf(64, wholeNode, "worker"), Required: "rack"}, false)
		run(at+"refused/no-such-node", s, &Request{Seats: seatsOf(2, twoNodesGPUs, "worker")}, false)
	}
}
