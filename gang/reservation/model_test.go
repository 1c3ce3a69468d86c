package reservation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// model is the store as it is meant to be, in a few maps.
type model struct {
	now   time.Time
	taken uint64 // revision at which room was taken last
	asOf  uint64
	gangs map[gang.Key]*modelGang
}

type modelGang struct {
	attempt   string
	need      []string
	deadline  time.Time
	hold      time.Duration
	committed bool
	here      map[string]time.Time // end of the lease
}

// TestStoreAgainstModel runs random operations by two stores on one Redis, and
// compares each answer; and what two mirrors show that follow the feed, now and
// then, and what others show that read everything.
func TestStoreAgainstModel(t *testing.T) {
	onBoth(t, func(t *testing.T, b backend) {
		rapid.Check(t, func(r *rapid.T) {
			if err := b.client.FlushAll(t.Context()).Err(); err != nil {
				r.Fatal(err)
			}
			newModelRun(t, r, b).run()
		})
	})
}

func newModelRun(t *testing.T, r *rapid.T, b backend) *modelRun {
	x := &modelRun{r: r, t: t, b: b, m: &model{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), gangs: map[gang.Key]*modelGang{}}}
	if b.mini != nil {
		b.mini.SetTime(x.m.now)
	}
	for range 2 {
		s := newStore(t, b)
		m := NewMirror(s)
		if err := m.load(t.Context()); err != nil {
			r.Fatal(err)
		}
		x.stores, x.mirrors = append(x.stores, s), append(x.mirrors, m)
	}
	x.at = x.mirrors[0].State().Revision
	return x
}

func (x *modelRun) run() {
	steps := []func(){x.reserve, x.arrive, x.arrive, x.withdraw, x.release, x.release, x.drain}
	if x.b.mini != nil {
		steps = append(steps, x.pass)
	}
	for range rapid.IntRange(1, 40).Draw(x.r, "steps") {
		x.s = rapid.SampledFrom(x.stores).Draw(x.r, "store")
		x.key = gang.Key{Namespace: "ns", Name: rapid.SampledFrom([]string{"x", "y"}).Draw(x.r, "gang")}
		rapid.SampledFrom(steps).Draw(x.r, "step")()
	}
	for i, m := range x.mirrors {
		x.follow(m)
		fresh := NewMirror(x.stores[i])
		if err := fresh.load(x.t.Context()); err != nil {
			x.r.Fatal(err)
		}
		x.compare(fresh)
	}
	left, err := x.s.Leftovers(x.t.Context())
	if err != nil || (len(x.m.gangs) == 0 && len(left) > 0) {
		x.r.Fatalf("left over: %v %v", left, err)
	}
}

// drain lets one of the mirrors take in what the feed has.
func (x *modelRun) drain() { x.follow(rapid.SampledFrom(x.mirrors).Draw(x.r, "mirror")) }

func (x *modelRun) follow(m *Mirror) {
	for m.State().Revision.Rev < x.at.Rev {
		if n, err := m.read(x.t.Context(), time.Second); err != nil || n == 0 {
			x.r.Fatalf("at %v of %v the feed gives %d entries: %v", m.State().Revision, x.at, n, err)
		}
	}
	x.compare(m)
}

// pass lets time go by, which only an embedded Redis can be told to.
func (x *modelRun) pass() {
	x.m.now = x.m.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(x.r, "seconds")) * time.Second)
	x.b.mini.SetTime(x.m.now)
}

type modelRun struct {
	r       *rapid.T
	t       *testing.T
	b       backend
	m       *model
	stores  []*Store
	mirrors []*Mirror
	at      Revision // the store's revision now
	n       int

	// Of this step.
	s   *Store
	key gang.Key
}

func (x *modelRun) current() string {
	if g := x.m.gangs[x.key]; g != nil {
		return g.attempt
	}
	return ""
}

// attempt is the present attempt, or another.
func (x *modelRun) attempt() string {
	return rapid.SampledFrom([]string{x.current(), x.current(), x.current(), "other"}).Draw(x.r, "attempt")
}

func (x *modelRun) reserve() {
	x.n++
	size := rapid.IntRange(0, 3).Draw(x.r, "size")
	res := sample(x.key, fmt.Sprint("a", x.n), size)
	behind := rapid.Uint64Range(0, 3).Draw(x.r, "behind")
	at := Revision{x.at.Incarnation, x.at.Rev - min(behind, x.at.Rev)}
	replaces := x.attempt()
	// A real Redis has no clock to set: a hold is over at once, or not in this test.
	hold := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(x.r, "hold")
	if x.b.mini != nil {
		hold = time.Duration(rapid.IntRange(1, 60).Draw(x.r, "seconds")) * time.Second
	}
	out, err := x.s.Reserve(x.t.Context(), at, res, hold, replaces)
	if err != nil {
		x.r.Fatal(err)
	}
	want := ResultReserved
	if x.m.taken > at.Rev || replaces != x.current() {
		want = ResultConflict
	}
	if out.Result != want {
		x.r.Fatalf("reserve at %d, room taken at %d, replaces %q of %q: got %d, want %d", at.Rev, x.m.taken, replaces, x.current(), out.Result, want)
	}
	if want != ResultReserved {
		return
	}
	if out.Revision.Rev != x.at.Rev+1 {
		x.r.Fatalf("revision %d follows %d", out.Revision.Rev, x.at.Rev)
	}
	x.at, x.m.taken = out.Revision, out.Revision.Rev
	g := &modelGang{attempt: res.Attempt, deadline: x.m.now.Add(hold), hold: hold, committed: size == 0, here: map[string]time.Time{}}
	for _, member := range res.Members {
		g.need = append(g.need, member.UID)
	}
	x.m.gangs[x.key] = g
}

// uid is one of the gang's required members, or a surplus one.
func (x *modelRun) uid() string {
	uids := []string{"surplus"}
	if g := x.m.gangs[x.key]; g != nil {
		uids = append(uids, g.need...)
	}
	return rapid.SampledFrom(uids).Draw(x.r, "uid")
}

func (x *modelRun) arrive() {
	attempt, uid := x.attempt(), x.uid()
	word, err := x.s.arrive(x.t.Context(), x.key, attempt, arrivalLease, []string{uid})
	if err != nil {
		x.r.Fatal(err)
	}
	g := x.m.gangs[x.key]
	want := "gone"
	if g != nil && attempt == g.attempt && attempt != "" {
		want = x.arriveAt(g, uid)
	}
	if word != want {
		x.r.Fatalf("arrive: got %s, want %s", word, want)
	}
}

func (x *modelRun) arriveAt(g *modelGang, uid string) string {
	if g.committed {
		return "committed"
	}
	if slices.Contains(g.need, uid) {
		g.here[uid] = x.m.now.Add(arrivalLease)
	}
	n := 0
	for _, until := range g.here {
		if until.After(x.m.now) {
			n++
		}
	}
	if n < len(g.need) {
		return "waiting"
	}
	g.committed = true
	x.at.Rev++
	return "committed"
}

func (x *modelRun) withdraw() {
	attempt, uid := x.attempt(), x.uid()
	word, err := x.s.withdraw(x.t.Context(), x.key, attempt, uid)
	if err != nil {
		x.r.Fatal(err)
	}
	g := x.m.gangs[x.key]
	want := "gone"
	if g != nil && attempt == g.attempt {
		want = "committed"
		if !g.committed {
			want = "withdrawn"
			delete(g.here, uid)
		}
	}
	if word != want {
		x.r.Fatalf("withdraw: got %s, want %s", word, want)
	}
}

func (x *modelRun) release() {
	attempt := x.attempt()
	asOf := rapid.Uint64Range(0, 9).Draw(x.r, "asOf")
	how := rapid.SampledFrom([]string{"abort", "expire", "finish", "drop"}).Draw(x.r, "how")
	ended, err := x.s.release(x.t.Context(), x.key, attempt, how, "why", asOf)
	if err != nil {
		x.r.Fatal(err)
	}
	g := x.m.gangs[x.key]
	want := g != nil && attempt == g.attempt
	if want {
		switch how {
		case "abort":
			want = !g.committed
		case "expire":
			want = !g.committed && !x.m.now.Before(g.deadline)
		case "finish":
			want = g.committed
		}
	}
	if ended != want {
		x.r.Fatalf("%s: got %t, want %t", how, ended, want)
	}
	if want {
		delete(x.m.gangs, x.key)
		x.at.Rev++
		x.m.asOf = max(x.m.asOf, asOf)
	}
}

// compare holds what a mirror shows to the model.
func (x *modelRun) compare(m *Mirror) {
	state := m.State()
	if !state.Synced || state.Revision != x.at || state.AsOf != x.m.asOf || len(state.Reservations) != len(x.m.gangs) {
		x.r.Fatalf("got %+v, want revision %v, asOf %d and %d gangs", state, x.at, x.m.asOf, len(x.m.gangs))
	}
	seats := 0
	for _, res := range state.Reservations {
		g := x.m.gangs[res.Gang]
		if g == nil || res.Attempt != g.attempt || (res.Phase == Committed) != g.committed || res.Deadline.Sub(res.Created) != g.hold {
			x.r.Fatalf("got %+v, want %+v", res, g)
		}
		for _, uid := range g.need {
			held, ok := m.Seat(uid)
			if !ok || held.Gang != res.Gang || held.Attempt != g.attempt || (held.Phase == Committed) != g.committed {
				x.r.Fatalf("member %s of %+v has the place %+v", uid, g, held)
			}
			seats++
		}
	}
	if len(m.seats) != seats {
		x.r.Fatalf("%d places for %d members", len(m.seats), seats)
	}
}
