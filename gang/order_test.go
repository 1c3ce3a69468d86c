package gang

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// contender is a gang in line, with the time of its last failure.
type contender struct {
	gang   *Gang
	failed time.Time
}

func compare(a, b contender) int { return Compare(a.gang, b.gang, a.failed, b.failed) }

func at(second int) time.Time { return time.Unix(int64(second), 0) }

func TestOrder(t *testing.T) {
	gang := func(name string, created int, failed time.Time, change func(*Gang)) contender {
		g := gangOf(2).pending(2)
		g.Key.Name, g.Created = name, at(created)
		if change != nil {
			change(g)
		}
		return contender{g, failed}
	}
	never := time.Time{}
	want := []contender{
		gang("broken", 90, at(95), func(g *Gang) { g.Members[0].Phase = Bound }),
		gang("urgent", 80, never, func(g *Gang) { g.Spec.Priority = 5 }),
		gang("old", 10, never, nil),
		gang("a", 20, never, nil),
		gang("b", 20, never, nil),
		gang("tried", 5, at(30), nil),
		gang("new", 40, never, nil),
		gang("tried lately", 1, at(50), nil),
		gang("unimportant", 0, never, func(g *Gang) { g.Spec.Priority = -1 }),
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compare)
	names := func(list []contender) (out []string) {
		for _, c := range list {
			out = append(out, c.gang.Key.Name)
		}
		return out
	}
	if diff := cmp.Diff(names(want), names(got)); diff != "" {
		t.Error(diff)
	}
}

func TestOrderIsTotal(t *testing.T) {
	draw := func(t *rapid.T, name string) contender {
		g := drawGang(t)
		g.Key = Key{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), name}
		g.Spec.Priority = int32(rapid.IntRange(0, 1).Draw(t, "priority"))
		g.Created = at(rapid.IntRange(0, 3).Draw(t, "created"))
		c := contender{gang: g}
		if rapid.Bool().Draw(t, "tried") {
			c.failed = at(rapid.IntRange(0, 3).Draw(t, "failed"))
		}
		return c
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := draw(t, "x"), draw(t, "y"), draw(t, "z")
		if compare(a, a) != 0 || compare(a, b) == 0 || compare(a, b)*compare(b, a) >= 0 {
			t.Fatalf("compares as %d and %d", compare(a, b), compare(b, a))
		}
		if compare(a, b) < 0 && compare(b, c) < 0 && compare(a, c) > 0 {
			t.Fatal("not transitive")
		}
	})
}
