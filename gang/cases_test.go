package gang

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// place places a scenario as testdata/place has them.
func place(t *testing.T, lines ...string) string {
	t.Helper()
	return answer(read(t, strings.Join(lines, "\n")))
}

func expect(t *testing.T, got string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(strings.Join(want, "\n"), got); diff != "" {
		t.Error(diff)
	}
}

// Three gangs want eight GPUs each, of which there are sixteen: whatever the order,
// two get all they want and the third nothing.
func TestCase_A1_NoGangHoldsAHalf(t *testing.T) {
	for _, order := range [][]string{{"a", "b", "c"}, {"c", "a", "b"}, {"b", "c", "a"}} {
		s, _ := read(t, "node n1..n2 gpu=8\nseats worker 1 gpu=1")
		started := 0
		for _, name := range order {
			plan, why := Place(s, &Request{Gang: Key{"ns", name}, Seats: seatsOf(8, 0, name)})
			if plan == nil {
				if why.Code != CodeRoom {
					t.Errorf("%v: gang %s: %s", order, name, why)
				}
				continue
			}
			started++
			for _, n := range plan.Nodes {
				s.Assume(n, 0)
			}
		}
		if started != 2 || slices.Min(s.Free) < 0 {
			t.Errorf("%v: %d started; free %v", order, started, s.Free)
		}
	}
}

func TestCase_A2_NothingIsHeldForAGangThatCannotStart(t *testing.T) {
	s, r := read(t, "node n1..n9 gpu=1\nseats worker 10 gpu=1")
	before := slices.Clone(s.Free)
	plan, why := Place(s, r)
	if plan != nil || !slices.Equal(before, s.Free) {
		t.Fatalf("plan %v; free %v", plan, s.Free)
	}
	expect(t, why.String(), "needs 10 nodes with 1 nvidia.com/gpu each; the cluster has 9")
	r.Seats = r.Seats[:9]
	if plan, why := Place(s, r); plan == nil {
		t.Errorf("the gang of nine: %s", why)
	}
}

func TestCase_A4_AGangThatFailedGoesBehind(t *testing.T) {
	old, young := gangOf(13).pending(13), gangOf(4).pending(4)
	old.Key.Name, old.Created = "old", at(0)
	young.Key.Name, young.Created = "young", at(10)
	if Compare(old, young, time.Time{}, time.Time{}) >= 0 {
		t.Error("the older gang is not tried first")
	}
	if Compare(old, young, at(11), time.Time{}) <= 0 {
		t.Error("the gang that has just failed is tried first again")
	}
	if Compare(old, young, at(11), at(12)) >= 0 {
		t.Error("the gang whose failure is longer ago is not tried first")
	}
	expect(t, place(t, "node n1 cpu=12", "seats old 13 cpu=1"),
		"size: needs room for 13 members of 1 cpu each; the cluster has room for 12")
}

func TestCase_B1_ABrokenGangComesBeforeFillers(t *testing.T) {
	broken, filler := gangOf(2).bound(1).gone(1).pending(1), gangOf(1).pending(1)
	broken.Key.Name, broken.Created = "broken", at(100)
	filler.Key.Name, filler.Created = "filler", at(0)
	if Compare(broken, filler, at(200), time.Time{}) >= 0 {
		t.Error("the filler is first")
	}
	filler.Spec.Priority = 1
	if Compare(broken, filler, at(200), time.Time{}) >= 0 {
		t.Error("the filler of higher priority is first")
	}
	if diff := cmp.Diff(Need{Required: []int{2}}, broken.Need()); diff != "" {
		t.Error(diff)
	}
}

func TestCase_B2_SucceededMembersCount(t *testing.T) {
	for name, g := range map[string]*Gang{
		"one has succeeded and one runs": gangOf(3).succeeded(1).bound(1).pending(1),
		"two have succeeded":             gangOf(3).succeeded(2).pending(1),
	} {
		if diff := cmp.Diff(Need{Required: []int{2}}, g.Need()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if gangOf(3).succeeded(2).bound(1).Broken() {
		t.Error("a gang whose members have succeeded is broken")
	}
}

func TestCase_B4_EarlyMembersWaitAndReplacementsStartAlone(t *testing.T) {
	for exist := 1; exist < 5; exist++ {
		need := gangOf(5).pending(exist).Need()
		if want := fmt.Sprintf("%d of 5 members exist; waits for %d more", exist, 5-exist); need.Text != want || need.Missing != 5-exist {
			t.Errorf("%d missing: %q, want %q", need.Missing, need.Text, want)
		}
	}
	if need := gangOf(5).pending(5).Need(); need.Missing != 0 || len(need.Required) != 5 {
		t.Errorf("complete: %+v", need)
	}
	if need := gangOf(5).bound(4).gone(1).pending(1).Need(); need.Missing != 0 || !slices.Equal(need.Required, []int{5}) {
		t.Errorf("one member was replaced: %+v", need)
	}
}

func TestCase_B5_ALeavingMemberGivesItsSlotToTheReplacement(t *testing.T) {
	for name, g := range map[string]*Gang{
		"it ran":        gangOf(3).bound(2).gone(1).pending(1),
		"it never ran":  gangOf(3).pending(2).gone(1).pending(1),
		"several times": gangOf(3).bound(2).gone(5).pending(1),
	} {
		need := g.Need()
		if last := len(g.Members) - 1; need.Missing != 0 || len(need.Surplus) != 0 || !slices.Contains(need.Required, last) {
			t.Errorf("%s: %+v", name, need)
		}
	}
}

func TestCase_B6_AFailedNodeIsNotChosenAgain(t *testing.T) {
	gang := "seats worker 2 gpu=1 perNode=1"
	for _, failure := range []string{"tainted", "not_ready", "cordoned"} {
		expect(t, place(t, "node n1 block=b1 gpu=1 out="+failure, "node n2..n3 block=b1 gpu=1", gang), "block b1", "n2: worker-0", "n3: worker-1")
	}
	expect(t, place(t, "node n1..n3 block=b1 gpu=1", gang, "excluded n1"), "block b1", "n2: worker-0", "n3: worker-1")
	expect(t, place(t, "node n1 block=b1 gpu=1 out=not_ready", "node n2 block=b1 gpu=1", gang),
		"constraints: needs 2 nodes with 1 nvidia.com/gpu each; only 1 such node may be used; nodes left out: 1 not ready")
}

func TestCase_C1_ALateLauncher(t *testing.T) {
	workers := gangOf(3).role("launcher", 1).role("worker", 2).waiting(2, "worker")
	need := workers.Need()
	if need.Missing != 1 || need.Text != "2 of 3 members exist; waits for 1 more: role launcher has 0 of 1" {
		t.Errorf("by default: %+v", need)
	}
	need = workers.lateRole("launcher", 1).Need()
	want := Need{Required: []int{0, 1}, Late: []LateRole{{Name: "launcher", Members: 1, Class: 1}}}
	if diff := cmp.Diff(want, need); diff != "" {
		t.Error(diff)
	}
	// Room for the launcher is a seat without a pod: without it nothing starts.
	expect(t, place(t, "node n1 rack=r1 gpu=2 cpu=3", "seats worker 2 gpu=1 cpu=1", "seats launcher 1 cpu=1"), "host n1", "n1: worker-0..1 launcher-0")
	expect(t, place(t, "node n1 rack=r1 gpu=2 cpu=3 used.cpu=1", "seats worker 2 gpu=1 cpu=1", "seats launcher 1 cpu=1"),
		"room: needs 3 cpu in all; 2 are free")
}

func TestCase_C3_ANewRevisionCountsWithTheOldOne(t *testing.T) {
	if diff := cmp.Diff(Need{Surplus: []int{2}}, gangOf(2).with(2, "", Bound, "rs1").with(1, "", Pending, "rs2").Need()); diff != "" {
		t.Error(diff)
	}
	if need := gangOf(2).with(1, "", Pending, "rs2").Need(); need.Text != "1 of 2 members exist; waits for 1 more" {
		t.Errorf("without the old ones: %+v", need)
	}
}

func TestCase_D4_OneDomainOrEqualSlices(t *testing.T) {
	// (a) two pods that must not share a host, with one whole pair of hosts.
	expect(t, place(t, "node n1..n2 rack=hn1 gpu=8", "node n3 rack=hn2 gpu=8", "node n4 rack=hn2 gpu=8 used.gpu=8",
		"node n5 rack=hn3 gpu=8", "node n6 rack=hn3 gpu=8 used.gpu=8", "seats worker 2 gpu=1 perNode=1"),
		"rack hn1", "n1: worker-0", "n2: worker-1")
	// (b) 32 over two racks of 18.
	s, r := read(t, "node n1..n18 block=b rack=r1 gpu=4\nnode n19..n36 block=b rack=r2 gpu=4\nseats worker 32 gpu=4")
	plan, why := Place(s, r)
	if plan == nil {
		t.Fatal(why)
	}
	rack, _ := s.Tree.Depth("rack")
	for i, n := range plan.Nodes {
		if got := s.Tree.Domain(rack, n); got != i/16 {
			t.Errorf("rank %d is in rack %d", i, got)
		}
	}
	// (c) required, and a node is missing.
	expect(t, place(t, "node n1..n17 rack=r1 gpu=8", "node n18 rack=r1 gpu=8 used.gpu=8", "node n19..n34 rack=r2 gpu=8", "seats worker 18 gpu=8", "required rack"),
		"topology: needs 18 nodes with 8 free nvidia.com/gpu each in one rack; rack r1 comes closest with 17 of 18")
	// (d) every node is a domain of its own.
	expect(t, place(t, "node n1..n3 rack=r1 gpu=8", "node n4 rack=r2 gpu=8", "seats worker 2 gpu=8", "required host"),
		"topology: needs 2 nodes with 8 free nvidia.com/gpu each in one host; host n1 comes closest with 1 of 2; even if empty, no host has room for more than 1")
}

func TestCase_D5_WholeDomainsStayWhole(t *testing.T) {
	expect(t, place(t, "node c1..c2 cpu=8 used.cpu=8", "node n1..n2 rack=r2 gpu=8", "node n3 rack=r1 gpu=8 used.gpu=8", "node n4 rack=r1 gpu=8", "seats cpu 1 cpu=4"),
		"host n3", "n3: cpu-0")
	s, _ := read(t, "node x1 gpu=2\nnode x2..x3 gpu=1\nseats a 1 gpu=1\nseats b 1 gpu=2")
	a, why := Place(s, &Request{Seats: seatsOf(2, 0, "a"), Preferred: "cluster"})
	if a == nil {
		t.Fatal(why)
	}
	for _, n := range a.Nodes {
		s.Assume(n, 0)
	}
	b, why := Place(s, &Request{Seats: seatsOf(1, 1, "b")})
	if b == nil || s.Tree.Name(b.Nodes[0]) != "x1" {
		t.Errorf("the pod with two GPUs: %v (%v)", b, why)
	}
}

// What others run on a node counts, even if that is more than the node has.
func TestCase_I2_ForeignPodsAreCounted(t *testing.T) {
	expect(t, place(t, "node n1 gpu=8 used.gpu=4", "seats worker 1 gpu=8"),
		"room: needs 1 node with 8 free nvidia.com/gpu; none has them")
	expect(t, place(t, "node n1 gpu=8 used.gpu=12 used.cpu=65", "node n2 gpu=8", "seats worker 2 gpu=4"), "host n2", "n2: worker-0..1")
	expect(t, place(t, "node n1 gpu=8 used.gpu=12", "node n2 gpu=8 used.gpu=4", "seats a 1 gpu=4", "seats b 1 gpu=2"),
		"room: needs 6 nvidia.com/gpu in all; 4 are free")
}

func TestCase_J2_GangsOfTheSameName(t *testing.T) {
	a, b := Key{"a", "b-c"}, Key{"a-b", "c"}
	if a == b || a.String() == b.String() || a.Compare(b) == 0 {
		t.Errorf("%v and %v are the same", a, b)
	}
	// What has succeeded in an earlier gang of this name does not count.
	need := gangOf(3).with(2, "", Succeeded, "old").with(2, "", Pending, "new").Need()
	if need.Missing != 1 || need.Text != "2 of 3 members exist; waits for 1 more" {
		t.Errorf("%+v", need)
	}
	need = gangOf(2).with(1, "", Succeeded, "").with(1, "", Pending, "").Need()
	if need.Missing != 1 {
		t.Errorf("bare pods have no owner in common: %+v", need)
	}
}

func TestCase_J4_ImpossibleRequestsAreNamed(t *testing.T) {
	expect(t, place(t, "node n1..n4 gpu=8", "seats worker 1 gpu=16"), "size: no node has 16 nvidia.com/gpu (the most is 8)")
	expect(t, place(t, "node n1..n4 gpu=8", "seats worker 10 gpu=8"), "size: needs 10 nodes with 8 nvidia.com/gpu each; the cluster has 4")
}
