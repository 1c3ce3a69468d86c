package gang

import (
	"slices"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// ClassID names a Class within one Snapshot: an index into Snapshot.Classes.
type ClassID int32

// Class describes pods that are interchangeable to the planner: same requests,
// same constraints.
type Class struct {
	// Request is what one pod takes, per Snapshot.Resources; "pods" is 1.
	Request []int64
	// Eligible tells for each node number whether the pod's taint tolerations,
	// node selector and affinity, and the node's own state allow it. nil: every node.
	Eligible []bool
	// MaxPerNode bounds the pods of this class on one node (host ports,
	// anti-affinity to its own kind); 0 means no bound.
	MaxPerNode int
	// LinkRequired and LinkPreferred are what the pod asks of the connection of its
	// GPUs to each other.
	LinkRequired, LinkPreferred topology.Requirement
	// Ineligible counts, by reason, the nodes that Eligible leaves out, in a
	// stable order, for texts like "12 are cordoned".
	Ineligible []Count
}

// Count is a number of things that share a reason.
type Count struct {
	Reason string
	N      int
}

// Snapshot is the cluster at one moment: what each node has and what of it is
// free. Free is dense, node-major: the amount of resource r on node n is
// Free[n*len(Resources)+r]. Units: millicores for "cpu", bytes for "memory" and
// "ephemeral-storage", pieces for everything else ("pods", GPUs).
type Snapshot struct {
	Tree        *topology.Tree
	Resources   []string
	GPU         int     // index in Resources of the GPU resource; -1 if no node has any
	Allocatable []int64 // node-major like Free
	Free        []int64 // allocatable less bound pods and reservations; may be negative
	// NodeGPUs is by node; nil if nothing is known of any node's links.
	NodeGPUs []NodeGPUs
	Classes  []Class
}

// Row is what is free on the node, per Resources. It is part of Free.
func (s *Snapshot) Row(node int) []int64 {
	width := len(s.Resources)
	return s.Free[node*width : (node+1)*width]
}

// Assume takes the room of one pod of the class on the node; Unassume gives it back.
func (s *Snapshot) Assume(node int, class ClassID) { s.AssumeRequest(node, s.Classes[class].Request) }

// Unassume is the inverse of Assume.
func (s *Snapshot) Unassume(node int, class ClassID) {
	s.UnassumeRequest(node, s.Classes[class].Request)
}

// AssumeRequest takes room on the node, per Resources; UnassumeRequest gives it back.
func (s *Snapshot) AssumeRequest(node int, request []int64) {
	row := s.Row(node)
	for r, n := range request {
		row[r] -= n
	}
	s.takeGPUs(node, request)
}

// UnassumeRequest is the inverse of AssumeRequest.
func (s *Snapshot) UnassumeRequest(node int, request []int64) {
	row := s.Row(node)
	for r, n := range request {
		row[r] += n
	}
	s.giveGPUs(node, request)
}

// Clone gives a snapshot of which what is free can change by itself; the rest is
// shared.
func (s *Snapshot) Clone() *Snapshot {
	out := *s
	out.Free = slices.Clone(s.Free)
	out.NodeGPUs = slices.Clone(s.NodeGPUs)
	return &out
}
