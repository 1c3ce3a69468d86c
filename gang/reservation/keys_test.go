package reservation

import (
	"strings"
	"testing"

	"github.com/lockstep-scheduler/lockstep/gang"
)

// TestCase_J2_NoTwoGangsShareAKey, whatever their names are, and none leaves the
// cluster's own part of Redis.
func TestCase_J2_NoTwoGangsShareAKey(t *testing.T) {
	gangs := []gang.Key{
		{Namespace: "a", Name: "b:c"},
		{Namespace: "a:b", Name: "c"},
		{Namespace: "a", Name: "b-c"},
		{Namespace: "a-b", Name: "c"},
		{Namespace: "a", Name: "b"},
		{Namespace: "a", Name: "*"},
		{Namespace: "a", Name: "b\nc"},
		{Namespace: "a", Name: "../b"},
		{Namespace: "a", Name: strings.Repeat("x", 253)},
		{Namespace: "a", Name: "gäng"},
		{Namespace: "a", Name: "}b{"},
	}
	if got := newKeys("").meta(); got != newKeys("default").meta() {
		t.Errorf("an empty hash tag is none: %q", got)
	}
	k := newKeys("c{1}")
	seen := map[string]gang.Key{}
	for _, g := range gangs {
		for _, name := range []string{k.state(g), k.need(g), k.here(g), field(g)} {
			if other, ok := seen[name]; ok {
				t.Errorf("gangs %q and %q share %q", other, g, name)
			}
			seen[name] = g
		}
		for _, name := range []string{k.state(g), k.need(g), k.here(g)} {
			if !strings.HasPrefix(name, "lockstep:{c_1_}:") || len(name) > 100 {
				t.Errorf("gang %q: key %q is not in its place", g, name)
			}
		}
		if back, err := parseField(field(g)); err != nil || back != g {
			t.Errorf("gang %q: read back as %q, %v", g, back, err)
		}
	}
}
