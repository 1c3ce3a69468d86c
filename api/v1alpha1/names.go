// Package v1alpha1 holds every name under which users and other components
// meet Lockstep: annotations, labels, gates and resources. Keys of pods may be
// annotations or labels; an annotation wins over a label of the same key.
package v1alpha1

// Group is the API group and the prefix of every key below.
const Group = "lockstep.scheduler"

// Keys a pod's author sets.
const (
	// Gang names the pod's gang within its namespace (1–253 characters).
	Gang = Group + "/gang"
	// MinMember is the number of members that must start together (≥ 1).
	MinMember = Group + "/min-member"
	// Role names the pod's role in its gang, such as "worker" (a DNS label).
	Role = Group + "/role"
	// RoleMinMember is the number of members of the pod's own role that must
	// start together; the role minimums add up to at most MinMember.
	RoleMinMember = Group + "/role-min-member"
	// LateRoles names roles whose pods are created only after the gang runs, as
	// JSON: {"launcher":{"members":1,"requests":{"cpu":"1"}}}. Room is kept for
	// them, and nobody waits for them.
	LateRoles = Group + "/late-roles"
	// TopologyRequired is the level of which one domain must hold the whole gang.
	TopologyRequired = Group + "/topology-required"
	// TopologyPreferred is the narrowest level worth seeking; "cluster" means
	// that closeness does not matter to this gang.
	TopologyPreferred = Group + "/topology-preferred"
	// SliceSize is how many members, neighbours by rank, must be in one domain: of the
	// narrowest level that can hold so many.
	SliceSize = Group + "/slice-size"
	// GPULinkRequired is how a pod's GPUs must be connected to each other: nvlink,
	// nvswitch, pcie (no further than one PCIe host bridge) or numa (on one NUMA
	// node). It may stand on pods without a gang, too.
	GPULinkRequired = Group + "/gpu-link-required"
	// GPULinkPreferred is the same as a wish.
	GPULinkPreferred = Group + "/gpu-link-preferred"
	// StartTimeout is how long the gang may hold room that it does not use yet,
	// as a Go duration: "90s", "2h".
	StartTimeout = Group + "/start-timeout"
)

// UserKeys are the keys that a pod's author may set, in the order in which
// errors name them. Any other key under Group+"/" on a new pod is a mistake.
var UserKeys = []string{
	Gang, MinMember, Role, RoleMinMember, LateRoles, TopologyRequired, TopologyPreferred,
	SliceSize, GPULinkRequired, GPULinkPreferred, StartTimeout,
}

// Names Lockstep itself sets.
const (
	// Gate is the scheduling gate of gang members, removed once the gang's room
	// is reserved.
	Gate = Group + "/gang"
	// MemberResource is asked for by every gang member, so that kube-scheduler
	// calls the extender for members without GPUs too. No node offers it.
	MemberResource = Group + "/member"
	// PinnedTo is written with a pin: the node to which the pod was pinned when its
	// gate was removed.
	PinnedTo = Group + "/pinned-to"
	// Attempt is written at bind: the reservation under which the pod was placed.
	Attempt = Group + "/attempt"
	// Placement is written at bind, as JSON: the narrowest domain that holds the gang,
	// which GPUs the pod may get, and the bandwidth of their ring.
	Placement = Group + "/placement"
)

// OwnKeys are those among them that pods carry. A pod that is made again from a dump
// may have them.
var OwnKeys = []string{PinnedTo, Attempt, Placement}

// GPUResource is the default extended resource that counts as a GPU.
const GPUResource = "nvidia.com/gpu"
