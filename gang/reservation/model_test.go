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
	committed bool
	here      map[string]time.Time // end of the lease
}

// TestStoreAgainstModel runs random operations by two stores on one Redis, and
// compares each answer, and in the end what two mirrors show.
func TestStoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := embedded(t)
		m := &model{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), gangs: map[gang.Key]*modelGang{}}
		b.mini.SetTime(m.now)
		stores := []*Store{newStore(t, b), newStore(t, b)}
		at, err := stores[0].open(t.Context())
		if err != nil {
			r.Fatal(err)
		}
		if _, err := stores[1].open(t.Context()); err != nil {
			r.Fatal(err)
		}
		run := &modelRun{r: r, t: t, m: m, at: at}
		for range rapid.IntRange(1, 40).Draw(r, "steps") {
			run.s = rapid.SampledFrom(stores).Draw(r, "store")
			run.key = gang.Key{Namespace: "ns", Name: rapid.SampledFrom([]string{"x", "y"}).Draw(r, "gang")}
			rapid.SampledFrom([]func(){run.reserve, run.arrive, run.arrive, run.withdraw, run.release, run.release, func() {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(r, "seconds")) * time.Second)
				b.mini.SetTime(m.now)
			}}).Draw(r, "step")()
		}
		run.compare(stores)
	})
}

type modelRun struct {
	r   *rapid.T
	t   *testing.T
	m   *model
	s   *Store
	key gang.Key
	at  Revision // the store's revision now
	n   int
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
	hold := time.Duration(rapid.IntRange(1, 60).Draw(x.r, "hold")) * time.Second
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
	g := &modelGang{attempt: res.Attempt, deadline: x.m.now.Add(hold), committed: size == 0, here: map[string]time.Time{}}
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

// compare holds what mirrors show to the model.
func (x *modelRun) compare(stores []*Store) {
	for _, s := range stores {
		m := NewMirror(s)
		if err := m.load(x.t.Context()); err != nil {
			x.r.Fatal(err)
		}
		state := m.State()
		if state.Revision != x.at || state.AsOf != x.m.asOf || len(state.Reservations) != len(x.m.gangs) {
			x.r.Fatalf("got %+v, want revision %v, asOf %d and %d gangs", state, x.at, x.m.asOf, len(x.m.gangs))
		}
		for _, res := range state.Reservations {
			g := x.m.gangs[res.Gang]
			if g == nil || res.Attempt != g.attempt || (res.Phase == Committed) != g.committed || !res.Deadline.Equal(g.deadline) {
				x.r.Fatalf("got %+v, want %+v", res, g)
			}
		}
		left, err := s.Leftovers(x.t.Context())
		if err != nil || (len(x.m.gangs) == 0 && len(left) > 0) {
			x.r.Fatalf("left over: %v %v", left, err)
		}
	}
}
