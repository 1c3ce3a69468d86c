// Package reservation is the store in which gangs hold the room they are about to
// use, so that any replica can answer for it. It is Redis, or an embedded Redis for
// a single replica; each operation is one script, and so one atomic step.
//
// Time is Redis's own: the clocks of the replicas do not matter.
package reservation

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// Phase is where a reservation stands.
//
//	           the last required member arrives
//	Reserved ───────────────────────────────────▶ Committed ──finish──▶ removed
//	   │                                              │
//	   ├── abort, expire ─────────────────────────────│───────────────▶ removed
//	   └── drop: the pods are gone ───────────────────┴───────────────▶ removed
//
// What is committed is never aborted: its members may be bound already.
type Phase uint8

// The phases. A reservation without required members is committed from the start.
const (
	Reserved Phase = iota
	Committed
)

func (p Phase) String() string {
	if p == Committed {
		return "committed"
	}
	return "reserved"
}

// Member is room for one pod on one node.
type Member struct {
	UID     string `json:"u,omitempty"` // empty: for a pod that is still to come
	Name    string `json:"n,omitempty"`
	Role    string `json:"o,omitempty"`
	Node    string `json:"h"`
	Request int    `json:"r"` // index into Reservation.Requests
	// GPUs is which GPUs the pod may get there; nil if that is not known.
	GPUs *GPUs `json:"g,omitempty"`
	// Required members are those for whose arrival everybody waits.
	Required bool `json:"q,omitempty"`
}

// GPUs is what a pod may get of its node's GPUs.
type GPUs struct {
	// Sets are what the device plugin may pick; of many only the first.
	Sets [][]int `json:"s"`
	// Worst, Expected and Best are of the bandwidth of their rings, in GB/s; Possible
	// is the best that so many GPUs have on an empty node of the kind.
	Worst    float64 `json:"w"`
	Expected float64 `json:"e"`
	Best     float64 `json:"b"`
	Possible float64 `json:"p"`
}

// Reservation is the room of one gang. It is immutable once stored, but for its
// phase, which only the store changes.
type Reservation struct {
	Gang    gang.Key `json:"-"`
	Attempt string   `json:"a"` // names this reservation among all of the gang
	Phase   Phase    `json:"-"`
	// Requests of the members, by resource name, in the units of gang.Snapshot.
	Requests []map[string]int64 `json:"q"`
	Members  []Member           `json:"m"`
	// Level and Domain name the narrowest domain that holds all members.
	Level  string `json:"l,omitempty"`
	Domain string `json:"d,omitempty"`
	// Need is how many required members must arrive.
	Need int `json:"n"`
	// Seen is the resource version of pods that the planner knew.
	Seen uint64 `json:"s"`
	// Created and Deadline are set by the store.
	Created  time.Time `json:"-"`
	Deadline time.Time `json:"-"`
}

// Revision is a state of the store. Revisions of different incarnations have
// nothing to do with each other: the store was emptied between them.
type Revision struct {
	Incarnation string
	Rev         uint64
}

// Result is what became of a Reserve.
type Result uint8

// The results of Reserve. All but the first leave the store as it was.
const (
	ResultReserved Result = iota
	// ResultConflict: somebody has taken room, or changed this gang's reservation,
	// since the revision.
	ResultConflict
	// ResultFenced: the store was emptied since the revision.
	ResultFenced
)

// Outcome of a Reserve.
type Outcome struct {
	Result   Result
	Revision Revision
	// Reservation is what is stored, if it is.
	Reservation *Reservation
}

// encode gives the part of a reservation that never changes.
func (r *Reservation) encode() (string, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encoding the reservation of gang %s: %w", r.Gang, err)
	}
	return string(body), nil
}

// decode reads a record: a line "phase created deadline", in milliseconds since
// the epoch, and the encoded reservation.
func decode(field, record string) (*Reservation, error) {
	key, err := parseField(field)
	if err != nil {
		return nil, err
	}
	bad := func(err error) (*Reservation, error) {
		return nil, fmt.Errorf("decoding the reservation of gang %s: %w", key, err)
	}
	head, body, ok := strings.Cut(record, "\n")
	words := strings.Fields(head)
	if !ok || len(words) != 3 {
		return bad(fmt.Errorf("bad head %.80q", head))
	}
	r := &Reservation{Gang: key}
	switch words[0] {
	case "reserved":
	case "committed":
		r.Phase = Committed
	default:
		return bad(fmt.Errorf("unknown phase %.80q", words[0]))
	}
	for i, at := range []*time.Time{&r.Created, &r.Deadline} {
		ms, err := strconv.ParseInt(words[i+1], 10, 64)
		if err != nil {
			return bad(err)
		}
		*at = time.UnixMilli(ms)
	}
	if err := json.Unmarshal([]byte(body), r); err != nil {
		return bad(err)
	}
	for i := range r.Members {
		if n := r.Members[i].Request; n < 0 || n >= len(r.Requests) {
			return bad(fmt.Errorf("member %d refers to request %d of %d", i, n, len(r.Requests)))
		}
	}
	return r, nil
}
