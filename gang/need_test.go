package gang

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// gangOf starts a gang for tests; members are added with its methods.
func gangOf(minMember int) *Gang {
	return &Gang{Key: Key{"ns", "g"}, Spec: Spec{MinMember: minMember}}
}

// with adds n members of a role under one owner.
func (g *Gang) with(n int, role string, phase Phase, owner string) *Gang {
	for range n {
		i := len(g.Members)
		m := Member{UID: fmt.Sprintf("uid-%d", i), Name: fmt.Sprintf("g-%d", i), Role: role, Owner: owner, Rank: i, Phase: phase}
		if phase == Bound {
			m.Node = "n"
		}
		g.Members = append(g.Members, m)
	}
	return g
}

func (g *Gang) pending(n int) *Gang              { return g.with(n, "", Pending, "job") }
func (g *Gang) bound(n int) *Gang                { return g.with(n, "", Bound, "job") }
func (g *Gang) succeeded(n int) *Gang            { return g.with(n, "", Succeeded, "job") }
func (g *Gang) gone(n int) *Gang                 { return g.with(n, "", Gone, "job") }
func (g *Gang) waiting(n int, role string) *Gang { return g.with(n, role, Pending, "job") }
func (g *Gang) running(n int, role string) *Gang { return g.with(n, role, Bound, "job") }

func (g *Gang) role(name string, minMember int) *Gang {
	g.Spec.Roles = append(g.Spec.Roles, Role{name, minMember})
	return g
}

func (g *Gang) lateRole(name string, members int) *Gang {
	g.Spec.LateRoles = append(g.Spec.LateRoles, LateRole{Name: name, Members: members, Class: 1})
	return g
}

func TestNeed(t *testing.T) {
	room := func(name string, members int) []LateRole { return []LateRole{{Name: name, Members: members, Class: 1}} }
	for _, c := range []struct {
		name   string
		gang   *Gang
		want   Need
		broken bool
	}{
		{"nobody", gangOf(2), Need{Missing: 2, Text: "0 of 2 members exist; waits for 2 more"}, false},
		{"some are missing", gangOf(3).pending(2), Need{Required: []int{0, 1}, Missing: 1, Text: "2 of 3 members exist; waits for 1 more"}, false},
		{"all are there", gangOf(3).pending(3), Need{Required: []int{0, 1, 2}}, false},
		{"without a minimum it is one", gangOf(0).pending(2), Need{Required: []int{0}, Surplus: []int{1}}, false},
		{"surplus", gangOf(2).pending(3), Need{Required: []int{0, 1}, Surplus: []int{2}}, false},
		{"running with surplus", gangOf(2).bound(2).pending(2), Need{Surplus: []int{2, 3}}, false},
		{"running above the minimum", gangOf(2).bound(5), Need{}, false},
		{"lost one, replaced", gangOf(3).bound(2).gone(1).pending(1), Need{Required: []int{3}}, true},
		{"lost two, one replaced", gangOf(3).bound(1).gone(2).pending(1), Need{Required: []int{3}, Missing: 1, Text: "2 of 3 members exist; waits for 1 more"}, true},
		{"lost one, not replaced", gangOf(2).bound(1).gone(1), Need{Missing: 1, Text: "1 of 2 members exist; waits for 1 more"}, true},
		{"all gone is not broken", gangOf(2).gone(2).pending(2), Need{Required: []int{2, 3}}, false},
		{
			"roles have minimums within the gang's",
			gangOf(4).role("ps", 1).role("worker", 2).waiting(3, "ps").waiting(3, "worker"),
			Need{Required: []int{0, 1, 3, 4}, Surplus: []int{2, 5}},
			false,
		},
		{
			"the gang has enough, a role has not",
			gangOf(3).role("launcher", 1).waiting(4, "worker"),
			Need{Required: []int{0, 1, 2}, Surplus: []int{3}, Missing: 1, Text: "3 of 3 members exist; waits for 1 more: role launcher has 0 of 1"},
			false,
		},
		{
			"several roles are short",
			gangOf(6).role("a", 2).role("b", 2).role("c", 2).waiting(1, "a").waiting(2, "b"),
			Need{Required: []int{0, 1, 2}, Missing: 3, Text: "3 of 6 members exist; waits for 3 more: role a has 1 of 2, role c has 0 of 2"},
			false,
		},
		{
			"many roles are short",
			gangOf(6).role("a", 1).role("b", 1).role("c", 1).role("d", 1).role("e", 1).role("f", 1),
			Need{Missing: 6, Text: "0 of 6 members exist; waits for 6 more: role a has 0 of 1, role b has 0 of 1, role c has 0 of 1, role d has 0 of 1, and 2 more roles"},
			false,
		},
		{
			"a running gang has lost the one of a role",
			gangOf(2).role("launcher", 1).running(3, "worker").with(1, "launcher", Gone, "job").waiting(1, "launcher"),
			Need{Required: []int{4}},
			true,
		},
		{
			"room for a late role",
			gangOf(3).lateRole("launcher", 1).waiting(2, "worker"),
			Need{Required: []int{0, 1}, Late: room("launcher", 1)},
			false,
		},
		{
			"the late role is there",
			gangOf(3).lateRole("launcher", 1).running(2, "worker").waiting(1, "launcher"),
			Need{Required: []int{2}},
			false,
		},
		{
			"the late role runs",
			gangOf(3).lateRole("launcher", 1).running(2, "worker").running(1, "launcher"),
			Need{},
			false,
		},
		{
			"a late role with a minimum of its own is not missing",
			gangOf(3).role("launcher", 1).role("worker", 2).lateRole("launcher", 1).waiting(2, "worker"),
			Need{Required: []int{0, 1}, Late: room("launcher", 1)},
			false,
		},
		{
			"running, and the late role is still to come",
			gangOf(3).lateRole("launcher", 1).running(2, "worker"),
			Need{Late: room("launcher", 1)},
			false,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.gang.Need()); diff != "" {
				t.Error(diff)
			}
			if got := c.gang.Broken(); got != c.broken {
				t.Errorf("broken: %v, want %v", got, c.broken)
			}
		})
	}
}

// TestInvalidGangsAreNotBroken: nothing is done for a gang that cannot be
// understood, so none of its members are asked to leave either.
func TestInvalidGangsAreNotBroken(t *testing.T) {
	g := gangOf(3).bound(1)
	g.Invalid = "min-member=x"
	if g.Broken() {
		t.Error("is broken")
	}
}

func drawGang(t *rapid.T) *Gang {
	g := gangOf(rapid.IntRange(0, 6).Draw(t, "min"))
	roles := []string{"a", "b"}
	for _, r := range roles {
		if n := rapid.IntRange(0, 3).Draw(t, "role "+r); n > 0 {
			g.role(r, n)
		}
	}
	for range rapid.IntRange(0, 8).Draw(t, "members") {
		g.with(1, rapid.SampledFrom(roles).Draw(t, "role"), Phase(rapid.IntRange(0, 3).Draw(t, "phase")), rapid.SampledFrom([]string{"", "job", "old"}).Draw(t, "owner"))
	}
	return g
}

// TestNeedIsTheFewest checks the arithmetic: the required members bring the gang to
// its minimums if nobody is missing, and without any one of them it is short.
func TestNeedIsTheFewest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawGang(t)
		need := g.Need()
		if (need.Missing == 0) != (need.Text == "") || need.Missing < 0 {
			t.Fatalf("missing %d: %q", need.Missing, need.Text)
		}
		all := slices.Sorted(slices.Values(slices.Concat(need.Required, need.Surplus)))
		var waits []int
		for i := range g.Members {
			if g.Members[i].Phase == Pending {
				waits = append(waits, i)
			}
		}
		if diff := cmp.Diff(waits, all); diff != "" {
			t.Fatalf("required and surplus are not the pending members: %s", diff)
		}
		if got := complete(g, need.Required); got != (need.Missing == 0) {
			t.Fatalf("with %v it is complete: %v, missing %d", need.Required, got, need.Missing)
		}
		for i := range need.Required {
			if need.Missing == 0 && complete(g, slices.Delete(slices.Clone(need.Required), i, i+1)) {
				t.Fatalf("member %d of %v is not needed", need.Required[i], need.Required)
			}
		}
	})
}

// complete counts, plainly, whether the gang reaches its minimums if the chosen
// members start.
func complete(g *Gang, chosen []int) bool {
	counts := func(i int) bool {
		m := g.Members[i]
		if m.Phase != Succeeded {
			return m.Phase == Bound || slices.Contains(chosen, i)
		}
		return m.Owner != "" && slices.ContainsFunc(g.Members, func(o Member) bool {
			return o.Owner == m.Owner && (o.Phase == Bound || o.Phase == Pending)
		})
	}
	total, role := 0, map[string]int{}
	for i := range g.Members {
		if counts(i) {
			total++
			role[g.Members[i].Role]++
		}
	}
	for _, r := range g.Spec.Roles {
		if role[r.Name] < r.MinMember {
			return false
		}
	}
	return total >= max(1, g.Spec.MinMember)
}

// TestBrokenIsBelowTheMinimum: a gang is broken if some of it is bound, but with
// nobody else it is not complete.
func TestBrokenIsBelowTheMinimum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawGang(t)
		bound := slices.ContainsFunc(g.Members, func(m Member) bool { return m.Phase == Bound })
		if got, want := g.Broken(), bound && !complete(g, nil); got != want {
			t.Fatalf("broken: %v, want %v", got, want)
		}
	})
}

func TestCompareKeys(t *testing.T) {
	keys := []Key{{"a", "a-b/c"}, {"a", "b"}, {"a-b", "c"}, {"b", ""}}
	for i, a := range keys {
		for j, b := range keys {
			if got := a.Compare(b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%v and %v: %d", a, b, got)
			}
		}
	}
}

func TestTextIsBounded(t *testing.T) {
	why := &Unschedulable{Code: CodeRoom, Detail: strings.Repeat("ä", 2000)}
	if text := why.String(); len(text) > 1024 || !strings.HasSuffix(text, "ä...") || strings.Contains(text, "\uFFFD") {
		t.Errorf("%d bytes, ending in %q", len(text), text[len(text)-10:])
	}
	if text := (&Unschedulable{Detail: "short"}).String(); text != "short" {
		t.Errorf("%q", text)
	}
}
