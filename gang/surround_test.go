package gang

import (
	"fmt"
	"slices"
	"testing"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// zones builds zones × racks × hosts nodes with labels for both levels.
func zones(zones, racks, hosts int) *topology.Tree {
	var nodes []topology.Node
	for z := range zones {
		for r := range racks {
			for h := range hosts {
				nodes = append(nodes, topology.Node{Name: fmt.Sprintf("z%d-r%d-h%d", z, r, h), Labels: map[string]string{
					"topology.kubernetes.io/zone": fmt.Sprint(z), "topology.kubernetes.io/rack": fmt.Sprintf("%d-%d", z, r),
				}})
			}
		}
	}
	return topology.Build(topology.DefaultLevels(), nodes)
}

func TestSurround(t *testing.T) {
	tree := zones(2, 4, 5)
	for _, c := range []struct {
		name    string
		refused []string
		want    int // nodes out; 0: nothing is added
	}{
		{"nothing", nil, 0},
		{"two of a rack say little", []string{"z0-r0-h0", "z0-r0-h1"}, 0},
		{"three of different racks say little", []string{"z0-r0-h0", "z0-r1-h1", "z0-r2-h0"}, 0},
		{"three of a rack speak for it", []string{"z0-r0-h0", "z0-r0-h1", "z0-r0-h4"}, 5},
		{"three racks speak for a zone", []string{
			"z0-r0-h0", "z0-r0-h1", "z0-r0-h2", "z0-r1-h0", "z0-r1-h1", "z0-r1-h2", "z0-r3-h0", "z0-r3-h1", "z0-r3-h2",
		}, 20},
		{"a rack that is out already is not added", []string{"z1-r0-h0", "z1-r0-h1", "z1-r0-h2", "z1-r0-h3", "z1-r0-h4"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var refused []bool
			if c.refused != nil {
				refused = make([]bool, tree.Len())
			}
			for _, name := range c.refused {
				n, ok := tree.Number(name)
				if !ok {
					t.Fatalf("no node %s", name)
				}
				refused[n] = true
			}
			before := slices.Clone(refused)
			got := Surround(tree, refused)
			if n := len(slices.DeleteFunc(slices.Clone(got), func(out bool) bool { return !out })); n != c.want {
				t.Errorf("%d nodes are out, want %d", n, c.want)
			}
			if !slices.Equal(refused, before) {
				t.Error("the set given was changed")
			}
		})
	}
}

// TestSurroundNeverTheCluster: bad luck everywhere leaves what did not refuse.
func TestSurroundNeverTheCluster(t *testing.T) {
	tree := zones(4, 3, 4)
	refused := make([]bool, tree.Len())
	for n := range refused {
		refused[n] = tree.Name(n)[:2] != "z3"
	}
	if got := Surround(tree, refused); got != nil {
		t.Errorf("got %v", got)
	}
}

// TestSurroundFindsTheGoodZone: a gang that only the last of four zones accepts is
// there after a few attempts, not after trying all of the 750 others.
func TestSurroundFindsTheGoodZone(t *testing.T) {
	tree := zones(4, 10, 25)
	refused := make([]bool, tree.Len())
	attempts := 0
	for {
		out := Surround(tree, refused)
		if out == nil {
			out = refused
		}
		n := slices.Index(out, false)
		if n < 0 {
			t.Fatal("the good zone is out, too")
		}
		attempts++
		if tree.Name(n)[:2] == "z3" {
			break
		}
		// A gang of 4 that is planned on neighbours learns of all four.
		for i := n; i < n+4; i++ {
			refused[i] = true
		}
	}
	if attempts != 10 { // three racks in each of three zones, and the good one
		t.Errorf("%d attempts", attempts)
	}
}
