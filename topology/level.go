// Package topology knows how the nodes of a cluster are connected: the tree of
// domains (zone, block, rack, NVLink clique, ...) read from node labels.
package topology

import (
	"fmt"
	"regexp"
	"strings"
)

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

// DefaultLevels are the levels looked for unless an operator says otherwise, from
// wide to narrow. The keys are those of Kubernetes, of NVIDIA's GPU operator, and
// of Topograph's three generations, the newest first:
// fabric.topograph.run and accelerator.topograph.run, network.topology.nvidia.com,
// network.topology.kubernetes.io.
func DefaultLevels() []Level {
	return []Level{
		{"zone", []string{"topology.kubernetes.io/zone"}},
		{"core", []string{
			"fabric.topograph.run/tier-2", "network.topology.nvidia.com/core",
			"network.topology.nvidia.com/datacenter", "network.topology.kubernetes.io/datacenter",
		}},
		{"spine", []string{
			"fabric.topograph.run/tier-1", "network.topology.nvidia.com/spine", "network.topology.kubernetes.io/spine",
		}},
		{"block", []string{
			"topology.kubernetes.io/block", "network.topology.nvidia.com/block",
			"network.topology.kubernetes.io/block", "cloud.google.com/gce-topology-block",
		}},
		{"rack", []string{
			"topology.kubernetes.io/rack", "fabric.topograph.run/tier-0", "network.topology.nvidia.com/leaf",
			"network.topology.kubernetes.io/leaf", "cloud.google.com/gce-topology-subblock",
		}},
		{"clique", []string{
			"nvidia.com/gpu.clique", "accelerator.topograph.run/domain", "network.topology.nvidia.com/accelerator",
			"network.topology.kubernetes.io/accelerator",
		}},
	}
}

var (
	levelName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey  = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
)

const (
	maxLevels = 16           // bounds the depth of the tree
	maxKey    = 253 + 1 + 63 // a DNS name, a slash and a name
)

// ParseLevels reads levels from wide to narrow, as "zone=label;rack=label|label".
// The error names the part that is wrong.
func ParseLevels(text string) ([]Level, error) {
	parts := strings.Split(text, ";")
	if len(parts) > maxLevels {
		return nil, fmt.Errorf("%d levels; there may be at most %d", len(parts), maxLevels)
	}
	levels := make([]Level, 0, len(parts))
	names, keyOf := map[string]bool{}, map[string]string{}
	for _, part := range parts {
		name, keys, ok := strings.Cut(part, "=")
		switch {
		case !ok:
			return nil, fmt.Errorf("%.80q: want name=label or name=label|label", part)
		case name == Cluster || name == Host:
			return nil, fmt.Errorf("%q is a level of its own already", name)
		case !levelName.MatchString(name):
			return nil, fmt.Errorf("%.80q: a level's name has lower-case letters, digits and '-'", name)
		case names[name]:
			return nil, fmt.Errorf("level %s is there twice", name)
		}
		names[name] = true
		level := Level{Name: name, Keys: strings.Split(keys, "|")}
		for _, key := range level.Keys {
			if len(key) > maxKey || !labelKey.MatchString(key) {
				return nil, fmt.Errorf("level %s: %.80q is not a label key", name, key)
			}
			if first, again := keyOf[key]; again {
				return nil, fmt.Errorf("level %s: label %s is used already, in level %s", name, key, first)
			}
			keyOf[key] = name
		}
		levels = append(levels, level)
	}
	return levels, nil
}
