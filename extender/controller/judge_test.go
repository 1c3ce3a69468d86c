package controller

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// trial is a reservation of two members, a on n1 and b on n2, with what is known of it.
type trial struct {
	res      reservation.Reservation
	pods     map[string]*cluster.Pod
	e        evidence
	unusable map[string]string // by node
	sent     time.Time
	before   string
	here     map[string]bool
}

func newTrial(changes ...func(*trial)) *trial {
	tr := &trial{
		res: reservation.Reservation{
			Phase: reservation.Reserved, Need: 2, Deadline: noon.Add(time.Minute),
			Members: []reservation.Member{{UID: "a", Name: "pod-a", Node: "n1", Required: true}, {UID: "b", Name: "pod-b", Node: "n2", Required: true}},
		},
		pods: map[string]*cluster.Pod{
			"a": {UID: "a", Name: "pod-a", Phase: gang.Pending},
			"b": {UID: "b", Name: "pod-b", Phase: gang.Pending},
		},
		e: evidence{now: noon, alive: true, required: 2, overcommitted: map[string]bool{}}, unusable: map[string]string{},
		sent: noon.Add(-5 * time.Second), here: map[string]bool{},
	}
	for _, change := range changes {
		change(tr)
	}
	return tr
}

func (tr *trial) judge() judgement {
	tr.e.pods = func(uid string) *cluster.Pod { return tr.pods[uid] }
	tr.e.unusable = func(_, node string) string { return tr.unusable[node] }
	tr.e.placedAt = func(string) (time.Time, string) { return tr.sent, tr.before }
	tr.e.arrived = func(uid string) bool { return tr.here[uid] }
	return judge(&tr.res, tr.e)
}

func phases(a, b gang.Phase) func(*trial) {
	return func(tr *trial) { tr.pods["a"].Phase, tr.pods["b"].Phase = a, b }
}

func committed(tr *trial) { tr.res.Phase = reservation.Committed }

func refusedBy(text string) func(*trial) {
	return func(tr *trial) { tr.pods["a"].Refused = text }
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		trial   *trial
		want    action
		why     string
		exclude []string
		blame   bool
	}{
		"all is well":        {trial: newTrial(), want: keep},
		"the gang is gone":   {trial: newTrial(func(tr *trial) { tr.e.alive = false }), want: drop, why: "gone"},
		"a member is gone":   {trial: newTrial(func(tr *trial) { delete(tr.pods, "b") }), want: abort, why: "member pod-b is gone"},
		"a member is ending": {trial: newTrial(phases(gang.Pending, gang.Gone)), want: abort, why: "member pod-b is gone"},
		"a member is bound":  {trial: newTrial(phases(gang.Bound, gang.Pending)), want: keep},
		"TestCase_B6 a node went": {
			trial: newTrial(func(tr *trial) { tr.unusable["n2"] = "tainted" }), want: abort, why: "node n2 is no longer usable: tainted",
		},
		"a node went under a bound member": {trial: newTrial(phases(gang.Pending, gang.Bound), func(tr *trial) { tr.unusable["n2"] = "deleted" }), want: keep},
		"TestCase_I2 others took the room": {trial: newTrial(func(tr *trial) { tr.e.overcommitted["n1"] = true }), want: abort, why: "n1 has less room"},
		"the minimum was raised":           {trial: newTrial(func(tr *trial) { tr.e.required = 3 }), want: abort, why: "3 members must start together now"},
		"the minimum was lowered":          {trial: newTrial(func(tr *trial) { tr.e.required = 1 }), want: keep},
		"its time is up":                   {trial: newTrial(func(tr *trial) { tr.e.now = noon.Add(time.Minute) }), want: expire, why: "timeout", blame: true},
		"its time is nearly up":            {trial: newTrial(func(tr *trial) { tr.e.now = noon.Add(time.Minute - 1) }), want: keep},

		"refused":                     {trial: newTrial(refusedBy("no")), want: abort, why: "refused member pod-a on node n1: no", exclude: []string{"n1"}, blame: true},
		"refused just now":            {trial: newTrial(refusedBy("no"), func(tr *trial) { tr.sent = noon.Add(-time.Second) }), want: keep},
		"refused before that":         {trial: newTrial(refusedBy("no"), func(tr *trial) { tr.before = "no" }), want: keep},
		"refused as before":           {trial: newTrial(refusedBy("no"), func(tr *trial) { tr.before, tr.sent = "no", noon.Add(-time.Minute) }), want: abort, exclude: []string{"n1"}, blame: true},
		"refused and accepted":        {trial: newTrial(refusedBy("no"), func(tr *trial) { tr.here["a"] = true }), want: keep},
		"refused and not sent":        {trial: newTrial(refusedBy("no"), func(tr *trial) { tr.sent = time.Time{} }), want: keep},
		"refused while gated":         {trial: newTrial(refusedBy("no"), func(tr *trial) { tr.pods["a"].Gated = true }), want: keep},
		"both refused at once":        {trial: newTrial(refusedBy("no"), func(tr *trial) { tr.pods["b"].Refused = "nor here" }), want: abort, exclude: []string{"n1", "n2"}, blame: true},
		"refused and node lost":       {trial: newTrial(refusedBy("no"), func(tr *trial) { tr.unusable["n2"] = "deleted" }), want: abort, why: "no longer usable"},
		"committed and refused":       {trial: newTrial(committed, refusedBy("no")), want: keep},
		"committed, node gone":        {trial: newTrial(committed, func(tr *trial) { tr.unusable["n1"] = "deleted" }), want: keep},
		"committed, time is up":       {trial: newTrial(committed, func(tr *trial) { tr.e.now = noon.Add(time.Hour) }), want: keep},
		"committed, half bound":       {trial: newTrial(committed, phases(gang.Bound, gang.Pending)), want: keep},
		"committed, all bound":        {trial: newTrial(committed, phases(gang.Bound, gang.Bound)), want: finish},
		"committed, one is gone":      {trial: newTrial(committed, phases(gang.Bound, gang.Gone)), want: finish},
		"committed, the gang is gone": {trial: newTrial(committed, func(tr *trial) { tr.e.alive = false }), want: drop},
		"TestCase_C1 room for pods to come": {trial: newTrial(committed, phases(gang.Bound, gang.Bound), func(tr *trial) {
			tr.res.Members, tr.e.toCome = append(tr.res.Members, reservation.Member{Node: "n3"}), 1
		}), want: keep},
		"room that nobody wants any more": {trial: newTrial(committed, phases(gang.Bound, gang.Bound), func(tr *trial) {
			tr.res.Members = append(tr.res.Members, reservation.Member{Node: "n3"})
		}), want: finish},
		"a surplus member that may still come": {trial: newTrial(committed, phases(gang.Bound, gang.Pending), func(tr *trial) { tr.res.Members[1].Required = false }), want: keep},
		"a surplus member that cannot": {trial: newTrial(committed, phases(gang.Bound, gang.Pending), func(tr *trial) {
			tr.res.Members[1].Required, tr.unusable["n2"] = false, "cordoned"
		}), want: finish},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.trial.judge()
			if got.action != c.want || !strings.Contains(got.why, c.why) || !slices.Equal(got.exclude, c.exclude) || got.blame != c.blame {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestRecordBacksOff(t *testing.T) {
	r := &record{excluded: map[string]time.Time{}}
	now := noon
	last := time.Duration(0)
	for i := range 40 {
		r.failed(now, []string{"n1"})
		delay := r.notBefore.Sub(now)
		if delay < last || delay > maxBackoff {
			t.Fatalf("failure %d: the delay is %s after %s", i, delay, last)
		}
		if r.worthwhile(r.notBefore.Add(-1), 0, 0) || !r.worthwhile(r.notBefore, 0, 0) {
			t.Fatalf("failure %d: the delay is not kept", i)
		}
		last, now = delay, r.notBefore
	}
	if last != maxBackoff {
		t.Errorf("the last delay is %s", last)
	}
	if !r.excludes("n1", now) || r.excludes("n1", now.Add(exclusion)) || r.excludes("n2", now) {
		t.Error("exclusions are not kept for their time")
	}
}

// TestRefusedPlansAreNotRepeated until something they depend on has changed.
func TestRefusedPlansAreNotRepeated(t *testing.T) {
	r := &record{excluded: map[string]time.Time{}}
	r.refuse(noon, &gang.Unschedulable{Code: gang.CodeRoom}, 3, 5)
	for _, c := range []struct {
		after          time.Duration
		changes, freed uint64
		want           bool
	}{{0, 3, 5, false}, {0, 4, 5, true}, {0, 3, 6, true}, {staleRefusal - 1, 3, 5, false}, {staleRefusal, 3, 5, true}} {
		if got := r.worthwhile(noon.Add(c.after), c.changes, c.freed); got != c.want {
			t.Errorf("after %s, %d changes, %d freed: got %t", c.after, c.changes, c.freed, got)
		}
	}
}

// TestCase_A2_ABrokenGangKeepsRoomForWhatItLost, and waits for all of it.
func TestCase_A2_ABrokenGangKeepsRoomForWhatItLost(t *testing.T) {
	g := &cluster.Pending{Gang: gang.Gang{
		Key: gang.Key{Namespace: "ns", Name: "g"}, Spec: gang.Spec{MinMember: 4},
		Members: []gang.Member{
			{UID: "a", Phase: gang.Bound, Class: 2}, {UID: "b", Phase: gang.Bound, Class: -1}, {UID: "c", Phase: gang.Pending, Class: 2},
		},
	}}
	need := g.Need()
	got := placeholders(g, &need)
	if len(got) != 1 || got[0].Members != 2 || got[0].Class != 2 {
		t.Errorf("got %+v, want room for two of class 2", got)
	}
	if why := waiting(g, &need, 0); why != nil {
		t.Errorf("without room: waits for %s", why)
	}
	if why := waiting(g, &need, 2); why == nil || why.Code != gang.CodeMembers {
		t.Errorf("with room: got %v", why)
	}
}

func TestForeignGatesAreNamed(t *testing.T) {
	g := &cluster.Pending{
		Gang:    gang.Gang{Spec: gang.Spec{MinMember: 2}, Members: []gang.Member{{UID: "a", Phase: gang.Pending}}},
		Foreign: []gang.Count{{Reason: "kueue.x-k8s.io/admission", N: 1}},
	}
	need := g.Need()
	why := waiting(g, &need, 0)
	if why == nil || why.Code != gang.CodeGates || !strings.Contains(why.String(), "1 by kueue.x-k8s.io/admission") {
		t.Errorf("got %v", why)
	}
}

func TestMessagesAreShort(t *testing.T) {
	for _, letter := range []string{"x", "é", "節", "🚀"} {
		text := message(gang.Key{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("g", 253)}, false, &gang.Unschedulable{Code: gang.CodeRoom, Detail: "a" + strings.Repeat(letter, 5000)})
		if len(text) > 1024 || !utf8.ValidString(text) {
			t.Errorf("%d bytes: %q", len(text), text)
		}
	}
}
