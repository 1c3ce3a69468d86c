// Package topology knows how the nodes of a cluster are connected: the tree of
// domains (zone, block, rack, NVLink clique, ...) read from node labels.
package topology

// Names of the two implicit levels: the widest, of which one domain holds every
// node, and the narrowest, of which each node is a domain of its own.
const (
	Cluster = "cluster"
	Host    = "host"
)

// Level is a level of the domain tree. Two nodes share a domain of a level when
// they share its label value, and a domain of every wider level.
type Level struct {
	// Name is what users write in annotations, such as "rack".
	Name string
	// Keys are the node labels that carry the level; the first one present counts.
	Keys []string
}
