package gang

import "strings"

// Code is the short form of a reason, for metrics and for telling one reason from
// another: one of the constants below.
type Code string

// Why a gang has no place.
const (
	CodeInvalid     Code = "invalid"     // its pods cannot be understood
	CodeMembers     Code = "members"     // members are still to be created
	CodeGates       Code = "gates"       // members wait for scheduling gates of others
	CodeSize        Code = "size"        // it is larger than the cluster
	CodeConstraints Code = "constraints" // taints, selectors or states leave it too few nodes
	CodeTopology    Code = "topology"    // no one domain of the required level has the room
	CodeLinks       Code = "links"       // free GPUs are not connected as it requires
	CodeRoom        Code = "room"        // too little is free at present
	CodeLost        Code = "lost"        // it had a place and lost it before it started
)

// Unschedulable is why a gang has no place. It is a value, not a fault. Its text
// is stable as long as nothing it speaks of changes.
type Unschedulable struct {
	Code   Code
	Detail string
}

// maxText bounds a reason, in bytes.
const maxText = 900

func (u *Unschedulable) String() string {
	if len(u.Detail) > maxText {
		return strings.ToValidUTF8(u.Detail[:maxText], "") + "..."
	}
	return u.Detail
}
