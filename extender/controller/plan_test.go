package controller

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// racks is a round on two racks of four nodes with one GPU each.
func racks() *round {
	var nodes []topology.Node
	for i := range 8 {
		nodes = append(nodes, topology.Node{Name: fmt.Sprintf("n%d", i), Labels: map[string]string{"topology.kubernetes.io/rack": fmt.Sprint(i / 4)}})
	}
	s := &gang.Snapshot{
		Tree: topology.Build(topology.DefaultLevels(), nodes), Resources: []string{"pods", "gpus"}, GPU: 1,
		Classes: []gang.Class{{Request: []int64{1, 1}}},
	}
	for range nodes {
		s.Allocatable = append(s.Allocatable, 110, 1)
	}
	s.Free = append(s.Free, s.Allocatable...)
	return &round{now: noon, view: &cluster.View{Snapshot: s}}
}

// TestAGangKeepsAwayFromWhereItWasRefused: from the surroundings, too, if there is
// room elsewhere, and otherwise only from the nodes that refused it.
func TestAGangKeepsAwayFromWhereItWasRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		members int
		refused []string
		want    []string // nil: there is no place
	}{
		{"nothing known", 1, nil, []string{"n0"}},
		{"the node", 1, []string{"n0"}, []string{"n1"}},
		{"its rack after three", 1, []string{"n0", "n1", "n2"}, []string{"n4"}},
		{"the rest of the rack is needed", 5, []string{"n0", "n1", "n2"}, []string{"n3", "n4", "n5", "n6", "n7"}},
		{"no room", 6, []string{"n0", "n1", "n2"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := racks()
			ctl := New(Options{}, nil, nil, nil, nil, nil, prometheus.NewRegistry())
			rec := ctl.history.of(gang.Key{Namespace: "ns", Name: "g"})
			if c.refused != nil {
				rec.failed(r.now, c.refused)
			}
			var in intent
			for i := range c.members {
				in.seats = append(in.seats, gang.Seat{UID: fmt.Sprint(i), Rank: i})
			}
			plan, why := ctl.place(r, &cluster.Pending{}, in, rec)
			if (plan == nil) != (c.want == nil) {
				t.Fatalf("got %v, %v", plan, why)
			}
			for i, want := range c.want {
				if got := r.view.Snapshot.Tree.Name(plan.Nodes[i]); got != want {
					t.Errorf("member %d is on %s, want %s", i, got, want)
				}
			}
		})
	}
}
