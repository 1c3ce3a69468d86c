package topology

// Node is what Build needs to know of a node.
type Node struct {
	Name   string
	Labels map[string]string
}

// Tree holds the nodes of a cluster and their domains. It is immutable: build a
// new one when a node comes, goes or changes its labels, and share it freely.
//
// Nodes are numbered 0..Len()-1 in depth-first order, so that each domain of
// each level is a contiguous interval of node numbers. Levels are numbered by
// depth: 0 is Cluster, then the configured levels from wide to narrow, and
// Depths()-1 is Host. A node that lacks the label of a level shares that level
// only with the nodes that share its next narrower one.
type Tree struct{}
