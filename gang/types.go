// Package gang decides which gangs start and where: pure functions from a
// Snapshot of the cluster to plans. It reads no clock, does no I/O and logs
// nothing, so the same values give the same decisions on every replica.
package gang

import "time"

// Key names a gang. Two gangs are the same only if both parts are equal.
type Key struct{ Namespace, Name string }

// String gives "namespace/name", which is unambiguous: a Kubernetes namespace
// has no slash in it.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Phase is where a pod stands, seen from its gang.
//
//	          reserve            bind
//	Pending ───────────▶ Pending ───▶ Bound ───▶ Succeeded
//	   │                    │           │
//	   └────────────────────┴───────────┴──────▶ Gone (failed, deleted or on its way out)
//
// A reservation does not change the phase: it is kept in the store, not in the pod.
type Phase uint8

// The phases of a member. Gone members hold no place in their gang.
const (
	Pending Phase = iota
	Bound
	Succeeded
	Gone
)

// Member is a pod of a gang.
type Member struct {
	UID   string
	Name  string
	Role  string
	Owner string // UID of the controlling owner; empty for a bare pod
	Rank  int    // position among its siblings, for laying out neighbours; -1 if unknown
	Class ClassID
	Phase Phase
	Node  string // where it is bound; empty while Pending
	// Created is the pod's creation time.
	Created time.Time
}

// Role is a minimum for the members of one role.
type Role struct {
	Name      string
	MinMember int
}

// LateRole is a role whose pods come after the gang has started. Room for
// Members pods of the Class is reserved with the gang.
type LateRole struct {
	Name    string
	Members int
	Class   ClassID
}

// Spec is what a gang's author asked for.
type Spec struct {
	MinMember    int
	Roles        []Role     // sorted by name
	LateRoles    []LateRole // sorted by name
	Required     string     // level name; empty: none
	Preferred    string     // level name; empty: the narrowest that holds the gang
	Slice        int        // members that must be in one domain together; 0: any number
	StartTimeout time.Duration
	Priority     int32
}

// Gang is a gang as the cluster shows it now.
type Gang struct {
	Key     Key
	Spec    Spec
	Members []Member // in the order of role, rank, name, UID
	Created time.Time
	// Single marks a pod without a gang that is treated as a gang of one: it is
	// planned and reserved like any other, and needs no barrier.
	Single bool
	// Invalid says why the gang cannot be scheduled as written, by key and value;
	// empty for a good one. An invalid gang is held.
	Invalid string
}
