package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

// intent is what a gang needs room for at present.
type intent struct {
	seats    []gang.Seat
	required int // of seats, from the front: those that start together
	fixed    []int
}

// intent gives the seats to place: the members that must start together, then
// room for pods that are still to come, then surplus members, which take what is
// left. A running gang that has lost members it does not have back yet gets room
// for all of them and no member of its own: it goes on when they are there.
func (r *round) intent(g *cluster.Pending, need *gang.Need) intent {
	in := intent{}
	for _, m := range g.Members {
		if n, ok := r.view.Snapshot.Tree.Number(m.Node); ok && m.Phase == gang.Bound {
			in.fixed = append(in.fixed, n)
		}
	}
	if need.Missing == 0 {
		for _, i := range need.Required {
			in.seats = append(in.seats, seatOf(&g.Members[i], false))
		}
		in.required = len(in.seats)
	}
	for _, late := range placeholders(g, need) {
		for range late.Members {
			in.seats = append(in.seats, gang.Seat{Role: late.Name, Class: late.Class, Rank: -1})
		}
	}
	if need.Missing == 0 {
		for _, i := range need.Surplus {
			in.seats = append(in.seats, seatOf(&g.Members[i], true))
		}
	}
	return in
}

func seatOf(m *gang.Member, optional bool) gang.Seat {
	return gang.Seat{UID: m.UID, Name: m.Name, Role: m.Role, Class: m.Class, Rank: m.Rank, Optional: optional}
}

// placeholders are the pods to come for which the gang's room is kept: those of
// late roles, and, in a gang that runs, the members that it has lost.
func placeholders(g *cluster.Pending, need *gang.Need) []gang.LateRole {
	out := slices.Clone(need.Late)
	if need.Missing == 0 || !g.Broken() {
		return out
	}
	lost := need.Missing + len(need.Required)
	for _, m := range g.Members {
		if m.Phase == gang.Bound && m.Class >= 0 {
			return append(out, gang.LateRole{Members: lost, Class: m.Class})
		}
	}
	return out
}

// place plans the gang on the snapshot, away from the surroundings of the nodes that
// refused it if it can. Either the plan or the reason is nil.
func (c *Controller) place(r *round, g *cluster.Pending, in intent, rec *record) (*gang.Plan, *gang.Unschedulable) {
	started := c.opts.Now()
	defer func() { c.metrics.place.Observe(c.opts.Now().Sub(started).Seconds()) }()
	req := &gang.Request{
		Gang: g.Key, Seats: in.seats, Fixed: in.fixed,
		Required: g.Spec.Required, Preferred: g.Spec.Preferred, Slice: g.Spec.Slice,
	}
	refused := r.excluded(rec)
	if req.Excluded = gang.Surround(r.view.Snapshot.Tree, refused); req.Excluded != nil {
		if plan, _ := c.planner.Place(r.view.Snapshot, req); plan != nil {
			return plan, nil
		}
	}
	req.Excluded = refused
	return c.planner.Place(r.view.Snapshot, req)
}

// excluded are the nodes that the gang keeps away from, by number; nil: none.
func (r *round) excluded(rec *record) []bool {
	var out []bool
	for i := range r.view.Snapshot.Tree.Len() {
		if rec.excludes(r.view.Snapshot.Tree.Name(i), r.now) {
			if out == nil {
				out = make([]bool, r.view.Snapshot.Tree.Len())
			}
			out[i] = true
		}
	}
	return out
}

// heldText says how much of what a gang misses is held for gangs that are about
// to start.
func (r *round) heldText(key gang.Key) string {
	var by []*reservation.Reservation
	for _, res := range r.held {
		if res.Gang != key && res.Phase != reservation.Committed {
			by = append(by, res)
		}
	}
	switch len(by) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("; room is held for gang %s until %s", by[0].Gang, by[0].Deadline.UTC().Format("15:04:05Z"))
	}
	return fmt.Sprintf("; room is held for %d gangs that are about to start", len(by))
}

// reservation writes the plan down. Surplus members without a place are left out.
func (c *Controller) reservation(r *round, g *cluster.Pending, in intent, plan *gang.Plan) *reservation.Reservation {
	res := &reservation.Reservation{
		Gang: g.Key, Attempt: c.opts.NewAttempt(), Need: in.required, Seen: r.view.Version,
		Level: plan.Level, Domain: plan.Domain,
	}
	request := map[gang.ClassID]int{}
	for i, seat := range in.seats {
		if plan.Nodes[i] < 0 {
			continue
		}
		index, ok := request[seat.Class]
		if !ok {
			index = len(res.Requests)
			request[seat.Class] = index
			res.Requests = append(res.Requests, r.view.Requests(seat.Class))
		}
		res.Members = append(res.Members, reservation.Member{
			UID: seat.UID, Name: seat.Name, Role: seat.Role, Request: index, Required: i < in.required,
			Node: r.view.Snapshot.Tree.Name(plan.Nodes[i]), GPUs: gpusOf(plan, i),
		})
	}
	return res
}

// gpusOf is which GPUs the seat may get, in the form in which it is kept.
func gpusOf(plan *gang.Plan, seat int) *reservation.GPUs {
	if plan.GPUs == nil || plan.GPUs[seat].Sets == nil {
		return nil
	}
	a := &plan.GPUs[seat]
	out := &reservation.GPUs{Worst: a.Worst, Expected: a.Expected, Best: a.Best, Possible: a.Possible}
	for _, s := range a.Sets[:min(len(a.Sets), v1alpha1.MaxPlacementSets)] {
		out.Sets = append(out.Sets, s.GPUs())
	}
	return out
}

// assume takes the plan's room in the snapshot, for the gangs that are planned next.
func (r *round) assume(in intent, plan *gang.Plan) {
	for i, seat := range in.seats {
		if plan.Nodes[i] >= 0 {
			r.view.Snapshot.Assume(plan.Nodes[i], seat.Class)
		}
	}
}

// release gives back, in the snapshot, the room that a reservation keeps for pods
// that are still to come, so that it can be planned anew; retake takes it again.
func (r *round) release(res *reservation.Reservation) { r.shift(res, (*gang.Snapshot).UnassumeRequest) }

func (r *round) retake(res *reservation.Reservation) { r.shift(res, (*gang.Snapshot).AssumeRequest) }

func (r *round) shift(res *reservation.Reservation, by func(*gang.Snapshot, int, []int64)) {
	if res == nil {
		return
	}
	for _, m := range res.Members {
		if n, ok := r.view.Snapshot.Tree.Number(m.Node); ok && m.UID == "" {
			by(r.view.Snapshot, n, r.view.Amounts(res.Requests[m.Request]))
		}
	}
}

// toCome counts the reservation's seats for pods that are still to come.
func toCome(res *reservation.Reservation) int {
	n := 0
	if res != nil {
		for _, m := range res.Members {
			if m.UID == "" {
				n++
			}
		}
	}
	return n
}

// waiting says for what the gang waits before it can be planned, or nil. room is
// how many pods to come the gang has room for already.
func waiting(g *cluster.Pending, need *gang.Need, room int) *gang.Unschedulable {
	if need.Missing == 0 {
		return nil
	}
	if g.Broken() {
		wanted := 0
		for _, late := range placeholders(g, need) {
			wanted += late.Members
		}
		if room < wanted {
			return nil
		}
	}
	detail := need.Text
	code := gang.CodeMembers
	if len(g.Foreign) > 0 {
		code = gang.CodeGates
		parts := make([]string, 0, len(g.Foreign))
		for _, f := range g.Foreign {
			parts = append(parts, fmt.Sprintf("%d by %s", f.N, f.Reason))
		}
		detail += "; held back by scheduling gates of others: " + strings.Join(parts, ", ")
	}
	return &gang.Unschedulable{Code: code, Detail: detail}
}

// lostPlace says why a gang that had a place has none, and when it tries again.
func lostPlace(why string, rec *record) *gang.Unschedulable {
	detail := "lost its place before it started: " + why
	if rec.failures > 0 {
		detail += fmt.Sprintf("; attempt %d failed, the next is in %s at the earliest", rec.failures, rec.notBefore.Sub(rec.lastFailed).Round(time.Second))
	}
	return &gang.Unschedulable{Code: gang.CodeLost, Detail: detail}
}
