package gang

import (
	"slices"
	"testing"

	"github.com/lockstep-scheduler/lockstep/topology"
)

func TestCase_D5_PodsWithoutGPUsKeepAwayFromWholeRacks(t *testing.T) {
	label := func(name, rack string) topology.Node {
		return topology.Node{Name: name, Labels: map[string]string{"rack": rack}}
	}
	tree := topology.Build([]topology.Level{{Name: "rack", Keys: []string{"rack"}}}, []topology.Node{
		label("a1", "a"), label("a2", "a"), label("b1", "b"), label("b2", "b"), label("c1", "c"),
	})
	all := []int64{8, 8, 8, 8, 0}
	free := []int64{0, 8, 8, 8, 0}
	if got, want := Scores(tree, all, free), []int{9, 2, 0, 0, 10}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// A node that offers less than is in use on it counts as full.
	if got := Scores(tree, all, []int64{-3, 8, 8, 8, 0}); got[0] != 9 {
		t.Errorf("got %v", got)
	}
	if got := Scores(topology.Build(nil, nil), nil, nil); len(got) != 0 {
		t.Errorf("of no nodes: %v", got)
	}
}
