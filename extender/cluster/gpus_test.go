package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/topology"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// reportOf is the report of node n1 with the machine of a matrix, of which pods hold
// GPUs: "a" holds those of the first list, "b" those of the second, and so on.
func reportOf(t *testing.T, matrix string, held ...[]int32) *v1alpha1.NodeTopology {
	t.Helper()
	text, err := os.ReadFile("../../topology/testdata/matrices/" + matrix + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	m, err := topology.ParseMatrix(string(text))
	if err != nil {
		t.Fatal(err)
	}
	g, err := m.Graph("")
	if err != nil {
		t.Fatal(err)
	}
	out := &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.NodeTopologyStatus{
		Generation: 1, HeartbeatTime: metav1.NewMicroTime(noon), HeartbeatSeconds: 60,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}},
	}}
	for i := range g.Len() {
		numa := int32(g.NUMA(i))
		out.Status.GPUs = append(out.Status.GPUs, v1alpha1.GPU{Index: int32(i), UUID: fmt.Sprint(i), NUMANode: &numa})
		for j := i + 1; j < g.Len(); j++ {
			l := g.Link(i, j)
			out.Status.Links = append(out.Status.Links, v1alpha1.GPULink{
				A: int32(i), B: int32(j), Path: l.Path.String(), NVLinks: int32(l.NVLinks), Switched: l.Switched, MBps: int64(l.GBps * 1000),
			})
		}
	}
	for i, gpus := range held {
		out.Status.Pods = append(out.Status.Pods, v1alpha1.PodGPUs{Namespace: "ns", Name: string(rune('a' + i)), GPUs: gpus})
	}
	return out
}

func gpus(n int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[gpu] = *resource.NewQuantity(n, resource.DecimalSI)
	}
}

// known gives what the view knows of n1's GPUs.
func known(t *testing.T, c *Cluster, now time.Time) gang.NodeGPUs {
	t.Helper()
	v := c.View(nil, now)
	if v.Snapshot.NodeGPUs == nil {
		return gang.NodeGPUs{}
	}
	n, ok := v.Snapshot.Tree.Number("n1")
	if !ok {
		t.Fatal("no node n1")
	}
	return v.Snapshot.NodeGPUs[n]
}

func TestReportsAndPodsTogether(t *testing.T) {
	for name, c := range map[string]struct {
		held  [][]int32
		pods  []*corev1.Pod
		gone  []string
		free  topology.Set
		taken []int
	}{
		"nobody":                         {free: 0xff},
		"as reported":                    {held: [][]int32{{0, 2}}, pods: []*corev1.Pod{aPod("a", 1, gpus(2), on("n1"))}, free: 0xff &^ topology.SetOf(0, 2)},
		"came since the report":          {held: [][]int32{{0, 2}}, pods: []*corev1.Pod{aPod("a", 1, gpus(2), on("n1")), aPod("x", 2, gpus(1), on("n1")), aPod("y", 3, gpus(2), on("n1"))}, free: 0xff &^ topology.SetOf(0, 2), taken: []int{2, 1}},
		"gone since the report":          {held: [][]int32{{0, 2}, {1}}, pods: []*corev1.Pod{aPod("a", 1, gpus(2), on("n1")), aPod("b", 2, on("n1"))}, gone: []string{"a"}, free: 0xff &^ topology.SetOf(1)},
		"ended, and this replica is new": {held: [][]int32{{0, 2}}, pods: []*corev1.Pod{aPod("a", 1, gpus(2), on("n1"), phase(corev1.PodFailed))}, free: 0xff},
		"ended since the report":         {held: [][]int32{{0, 2}}, pods: []*corev1.Pod{aPod("a", 1, gpus(2), on("n1")), aPod("a", 2, gpus(2), on("n1"), phase(corev1.PodSucceeded))}, free: 0xff},
		"reported, and not seen yet":     {held: [][]int32{{0, 2}}, free: 0xff &^ topology.SetOf(0, 2)},
		"a pod elsewhere does not count": {pods: []*corev1.Pod{aPod("z", 1, gpus(4), on("n2"))}, free: 0xff},
		"one without GPUs neither":       {pods: []*corev1.Pod{aPod("z", 1, gpus(0), on("n1"))}, free: 0xff},
	} {
		for _, reportFirst := range []bool{true, false} {
			if !reportFirst && len(c.gone) > 0 {
				continue // that would be before the report
			}
			cl := newCluster()
			cl.SetNode(aNode("n1", 8))
			cl.SetNode(aNode("n2", 8))
			tell := func() {
				if err := cl.SetNodeTopology(reportOf(t, "pcie-8x-nv12-pairs", c.held...), noon); err != nil {
					t.Fatal(err)
				}
			}
			if reportFirst {
				tell()
			}
			for _, p := range c.pods {
				cl.SetPod(p)
			}
			if !reportFirst {
				tell()
			}
			for _, name := range c.gone {
				cl.DeletePod(aPod(name, 1).UID, "9")
			}
			got := known(t, cl, noon)
			if got.Table == nil || got.Free != c.free || !slices.Equal(got.Taken, c.taken) {
				t.Errorf("%s: free %v, taken %v; want %v, %v", name, got.Free.GPUs(), got.Taken, c.free.GPUs(), c.taken)
			}
		}
	}
}

// A report names pods, and the name may come again on the same node: what is said of
// the predecessor holds for nobody, until the agent has spoken again.
func TestPodsThatComeAgain(t *testing.T) {
	pod := func(version int, uid types.UID, change ...func(*corev1.Pod)) *corev1.Pod {
		p := aPod("a", version, append(change, gpus(2), on("n1"), foreseen("[[1,3]]"))...)
		p.UID = uid
		return p
	}
	for name, change := range map[string]func(*Cluster){
		"deleted and made again": func(c *Cluster) {
			c.DeletePod("old", "2")
			c.SetPod(pod(3, "new"))
		},
		"the same over a gap in the watch": func(c *Cluster) {
			c.SetPod(pod(3, "new"))
			c.DeletePod("old", "3")
		},
		"ended, deleted and made again": func(c *Cluster) {
			c.SetPod(pod(2, "old", phase(corev1.PodFailed)))
			c.DeletePod("old", "3")
			c.SetPod(pod(4, "new"))
		},
		"the same over a gap": func(c *Cluster) {
			c.SetPod(pod(2, "old", phase(corev1.PodFailed)))
			c.SetPod(pod(4, "new"))
			c.DeletePod("old", "4")
		},
		"ended before this replica was there, deleted and made again": func(c *Cluster) {
			c.DeletePod("ended", "2")
			c.SetPod(pod(3, "new"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.SetNode(aNode("n1", 8))
			report := func(after time.Duration) {
				r := reportOf(t, "pcie-8x-nv12-pairs", []int32{0, 2})
				r.Status.HeartbeatTime = metav1.NewMicroTime(noon.Add(after))
				if err := c.SetNodeTopology(r, noon); err != nil {
					t.Fatal(err)
				}
			}
			if strings.HasPrefix(name, "ended before") {
				c.SetPod(pod(1, "ended", phase(corev1.PodFailed)))
			} else {
				c.SetPod(pod(1, "old"))
			}
			report(0)
			change(c)
			report(0) // as the watch gives it again after a gap
			if got := known(t, c, noon); got.Free != 0xff || !slices.Equal(got.Taken, []int{2}) {
				t.Errorf("by the old report: free %v, taken %v", got.Free.GPUs(), got.Taken)
			}
			if got := c.Handed(); len(got) > 0 {
				t.Errorf("what the predecessor was handed counts: %+v", got)
			}
			report(time.Minute)
			if got := known(t, c, noon); got.Free != 0xff&^topology.SetOf(0, 2) || len(got.Taken) > 0 {
				t.Errorf("by the next heartbeat: free %v, taken %v", got.Free.GPUs(), got.Taken)
			}
			if got := c.Handed(); len(got) != 1 || got[0].Pod.UID != "new" {
				t.Errorf("what the pod was handed: %+v", got)
			}
		})
	}
}

func TestTheNextReportCountsOnce(t *testing.T) {
	c := newCluster()
	c.SetNode(aNode("n1", 8))
	if err := c.SetNodeTopology(reportOf(t, "pcie-8x-nv12-pairs"), noon); err != nil {
		t.Fatal(err)
	}
	c.SetPod(aPod("a", 1, gpus(2), on("n1")))
	if got := known(t, c, noon); got.Free != 0xff || !slices.Equal(got.Taken, []int{2}) {
		t.Errorf("before: free %v, taken %v", got.Free.GPUs(), got.Taken)
	}
	next := reportOf(t, "pcie-8x-nv12-pairs", []int32{4, 5})
	next.Status.Generation = 2
	if err := c.SetNodeTopology(next, noon); err != nil {
		t.Fatal(err)
	}
	if got := known(t, c, noon); got.Free != 0xff&^topology.SetOf(4, 5) || len(got.Taken) != 0 {
		t.Errorf("after: free %v, taken %v", got.Free.GPUs(), got.Taken)
	}
	// The room that a reservation holds comes on top, until its pod is bound.
	v := c.View([]Claim{{Requests: map[string]int64{gpu: 3, "pods": 1}, Holds: []Hold{{UID: "a", Node: "n1"}, {UID: "later", Node: "n1"}}}}, noon)
	if got := v.Snapshot.NodeGPUs[0].Taken; !slices.Equal(got, []int{3}) {
		t.Errorf("with a reservation: taken %v", got)
	}
	if got := known(t, c, noon); len(got.Taken) != 0 {
		t.Errorf("the view has changed what it was made of: taken %v", got.Taken)
	}
}

func TestReportsThatAreNotBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.NodeTopologyStatus)
		gpus   int64
		after  time.Duration
		want   bool
	}{
		"good":                    {nil, 8, 0, true},
		"before the third missed": {nil, 8, 179 * time.Second, true},
		"three heartbeats missed": {nil, 8, 181 * time.Second, false},
		"from long ago":           {func(s *v1alpha1.NodeTopologyStatus) { s.HeartbeatTime = metav1.NewMicroTime(noon.Add(-time.Hour)) }, 8, 0, false},
		"a clock that is behind": {func(s *v1alpha1.NodeTopologyStatus) {
			s.HeartbeatTime = metav1.NewMicroTime(noon.Add(-4 * time.Minute))
		}, 8, 0, true},
		"not ready":               {func(s *v1alpha1.NodeTopologyStatus) { s.Conditions[0].Status = metav1.ConditionFalse }, 8, 0, false},
		"no GPUs":                 {func(s *v1alpha1.NodeTopologyStatus) { s.GPUs, s.Links = nil, nil }, 8, 0, false},
		"GPUs shared by replicas": {nil, 32, 0, false},
		"fewer GPUs are offered":  {nil, 6, 0, true},
	} {
		cl := newCluster()
		cl.SetNode(aNode("n1", c.gpus))
		r := reportOf(t, "pcie-8x-nv12-pairs")
		if c.change != nil {
			c.change(&r.Status)
		}
		if err := cl.SetNodeTopology(r, noon); err != nil {
			t.Fatal(err)
		}
		if got := known(t, cl, noon.Add(c.after)); (got.Table != nil) != c.want {
			t.Errorf("%s: known %t", name, got.Table != nil)
		}
	}
}

func TestUnhealthyAndSharedGPUsAreNotFree(t *testing.T) {
	c := newCluster()
	c.SetNode(aNode("n1", 8))
	r := reportOf(t, "pcie-8x-nv12-pairs", []int32{3})
	r.Status.GPUs[5].Unhealthy = "XID 79"
	r.Status.GPUs[6].MIG = true
	r.Status.Pods[0].Shared = true
	if err := c.SetNodeTopology(r, noon); err != nil {
		t.Fatal(err)
	}
	if got := known(t, c, noon); got.Free != 0xff&^topology.SetOf(3, 5, 6) {
		t.Errorf("free %v", got.Free.GPUs())
	}
}

// TestGarbledReports: a report that makes no sense is refused, and takes nothing else
// with it.
func TestGarbledReports(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.NodeTopologyStatus)
		want   string
	}{
		"a GPU twice":       {func(s *v1alpha1.NodeTopologyStatus) { s.GPUs[1].Index = 0 }, "GPU 0 is there twice"},
		"a link to nowhere": {func(s *v1alpha1.NodeTopologyStatus) { s.Links[0].B = 99 }, "link 0-99"},
		"a link to itself":  {func(s *v1alpha1.NodeTopologyStatus) { s.Links[0].B = 0 }, "link 0-0"},
		"an unknown path":   {func(s *v1alpha1.NodeTopologyStatus) { s.Links[0].Path = "FOO" }, `"FOO"`},
		"a negative speed":  {func(s *v1alpha1.NodeTopologyStatus) { s.Links[0].MBps = -1 }, "no such connection"},
		"a GPU of nobody":   {func(s *v1alpha1.NodeTopologyStatus) { s.Pods = []v1alpha1.PodGPUs{{Name: "p", GPUs: []int32{8}}} }, "holds GPU 8"},
		"too many GPUs": {func(s *v1alpha1.NodeTopologyStatus) {
			for i := range int32(20) {
				s.GPUs = append(s.GPUs, v1alpha1.GPU{Index: 100 + i})
			}
		}, "28 GPUs on one node"},
	} {
		cl := newCluster()
		cl.SetNode(aNode("n1", 8))
		if err := cl.SetNodeTopology(reportOf(t, "pcie-8x-nv12-pairs"), noon); err != nil {
			t.Fatal(err)
		}
		bad := reportOf(t, "pcie-8x-nv12-pairs")
		bad.Status.Generation = 2
		c.change(&bad.Status)
		if err := cl.SetNodeTopology(bad, noon); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "n1") {
			t.Errorf("%s: got %v", name, err)
		}
		if got := known(t, cl, noon); got.Table != nil {
			t.Errorf("%s: the old report is still believed", name)
		}
	}
}

func TestLinkKeys(t *testing.T) {
	for name, c := range map[string]struct {
		change []func(*corev1.Pod)
		single bool
		bad    string
	}{
		"a pod of its own":       {[]func(*corev1.Pod){asking("nvlink")}, true, ""},
		"a gang's":               {[]func(*corev1.Pod){of("g", 2), asking("nvswitch")}, false, ""},
		"a wrong word":           {[]func(*corev1.Pod){asking("NVLink")}, true, `lockstep.scheduler/gpu-link-required="NVLink": want nvlink, nvswitch, pcie or numa`},
		"a wrong word in a gang": {[]func(*corev1.Pod){of("g", 2), asking("x")}, false, `gpu-link-required="x"`},
		"without GPUs":           {[]func(*corev1.Pod){gpus(0), asking("numa")}, true, "the pod asks for no GPUs"},
	} {
		p := readPod(aPod("p", 1, c.change...), gpu)
		bad := ""
		if p.bad != nil {
			bad = p.bad.String()
		}
		if p.Single != c.single || !strings.Contains(bad, c.bad) || (bad == "") != (c.bad == "") {
			t.Errorf("%s: single %t, bad %q", name, p.Single, bad)
		}
	}
	// Pods that ask for different links are of different classes.
	c := newCluster()
	c.SetNode(aNode("n1", 8))
	c.SetPod(aPod("a", 1, gpus(2), asking("nvlink")))
	c.SetPod(aPod("b", 2, gpus(2)))
	v := c.View(nil, noon)
	if len(v.Snapshot.Classes) != 2 || v.Snapshot.Classes[0].LinkRequired == v.Snapshot.Classes[1].LinkRequired {
		t.Errorf("got %+v", v.Snapshot.Classes)
	}
}

func asking(link string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[v1alpha1.GPULinkRequired] = link }
}

// TestTheReportedFabricIsTheClique: where no label says so, nodes of one fabric share a
// clique, and no longer when the report goes.
func TestTheReportedFabricIsTheClique(t *testing.T) {
	c := New(Options{GPU: gpu, Levels: topology.DefaultLevels()})
	for _, name := range []string{"n1", "n2", "n3"} {
		n := aNode(name, 4)
		if name == "n2" {
			n.Labels = map[string]string{cliqueLabel: "f.1"}
		}
		c.SetNode(n)
	}
	clique := func() string {
		t.Helper()
		tree := c.View(nil, noon).Snapshot.Tree
		depth, _ := tree.Depth("clique")
		at := map[int][]string{}
		for i := range tree.Len() {
			d := tree.Domain(depth, i)
			at[d] = append(at[d], tree.Name(i))
		}
		n, _ := tree.Number("n1")
		slices.Sort(at[tree.Domain(depth, n)])
		return strings.Join(at[tree.Domain(depth, n)], " ")
	}
	if got := clique(); got != "n1" {
		t.Errorf("before: n1 is with %s", got)
	}
	r := reportOf(t, "gb200-4x-nvl72-tray")
	r.Status.Fabric = &v1alpha1.Fabric{ClusterUUID: "f", CliqueID: 1}
	if err := c.SetNodeTopology(r, noon); err != nil {
		t.Fatal(err)
	}
	if got := clique(); got != "n1 n2" {
		t.Errorf("with a report: n1 is with %s", got)
	}
	// Eligibility goes by the numbers of the nodes, which have changed.
	c.SetPod(aPod("p", 1, of("g", 1), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{cliqueLabel: "f.1"} }))
	v := c.View(nil, noon)
	for i, ok := range v.Snapshot.Classes[0].Eligible {
		if ok != (v.Snapshot.Tree.Name(i) == "n2") {
			t.Errorf("node %s is eligible: %t", v.Snapshot.Tree.Name(i), ok)
		}
	}
	c.DeleteNodeTopology("n1")
	if got := clique(); got != "n1" {
		t.Errorf("after: n1 is with %s", got)
	}
	v = c.View(nil, noon)
	for i, ok := range v.Snapshot.Classes[0].Eligible {
		if ok != (v.Snapshot.Tree.Name(i) == "n2") {
			t.Errorf("then node %s is eligible: %t", v.Snapshot.Tree.Name(i), ok)
		}
	}
}

// foreseen is the annotation of a pod that was to get one of the sets, with a ring of
// 300 GB/s.
func foreseen(sets string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations[v1alpha1.Placement] = `{"level":"host","domain":"n1","gpus":` + sets + `,"ring":{"worst":300,"expected":300,"best":300,"share":1}}`
	}
}

func TestHanded(t *testing.T) {
	for name, c := range map[string]struct {
		sets string
		got  []int32
		want Verdict
		ring float64
	}{
		"as foreseen":      {"[[0,2],[1,3]]", []int32{3, 1}, Foreseen, 300},
		"another, as good": {"[[0,2],[1,3]]", []int32{4, 5}, Unforeseen, 300},
		"worse":            {"[[0,2],[1,3]]", []int32{0, 1}, Worse, 7.88},
		"one of many":      {"[[0,2],[1,3],[0,1],[0,3],[0,4],[0,5],[0,6],[0,7]]", []int32{4, 5}, Foreseen, 300},
	} {
		cl := newCluster()
		cl.SetNode(aNode("n1", 8))
		if err := cl.SetNodeTopology(reportOf(t, "pcie-8x-nv12-pairs"), noon); err != nil {
			t.Fatal(err)
		}
		cl.SetPod(aPod("a", 1, gpus(2), on("n1"), foreseen(c.sets)))
		if got := cl.Handed(); len(got) != 0 {
			t.Errorf("%s: before the report: %+v", name, got)
		}
		next := reportOf(t, "pcie-8x-nv12-pairs", c.got)
		next.Status.Generation = 2
		if err := cl.SetNodeTopology(next, noon); err != nil {
			t.Fatal(err)
		}
		got := cl.Handed()
		if len(got) != 1 || got[0].Verdict != c.want || max(got[0].Ring-c.ring, c.ring-got[0].Ring) > 0.01 || got[0].Pod.Name != "a" {
			t.Errorf("%s: got %+v", name, got)
		}
		cl.SetPod(aPod("a", 2, gpus(2), on("n1"), foreseen(c.sets)))
		if got := cl.Handed(); len(got) != 0 {
			t.Errorf("%s: counted again: %+v", name, got)
		}
	}
	// A replica that has just started does not count what others have counted.
	cl := newCluster()
	cl.SetNode(aNode("n1", 8))
	cl.SetPod(aPod("a", 1, gpus(2), on("n1"), foreseen("[[0,2]]")))
	if err := cl.SetNodeTopology(reportOf(t, "pcie-8x-nv12-pairs", []int32{0, 1}), noon); err != nil {
		t.Fatal(err)
	}
	if got := cl.Handed(); len(got) != 0 {
		t.Errorf("at start: %+v", got)
	}
}

// FuzzNodeTopology: whatever an agent reports of its node, it is refused or planned
// with.
func FuzzNodeTopology(f *testing.F) {
	f.Add([]byte(`{"generation":1,"heartbeatSeconds":60,"gpus":[{"index":0},{"index":1}],"links":[{"a":0,"b":1,"path":"SYS","nvlinks":2}],"pods":[{"name":"a","gpus":[1]}]}`))
	f.Add([]byte(`{"heartbeatSeconds":-1,"fabric":{"clusterUUID":"x","cliqueID":1},"numaPolicy":"single-numa-node","gpus":[{"index":-5,"numaNode":-2}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		if json.Unmarshal(text, &r.Status) != nil {
			return
		}
		c := newCluster()
		c.SetNode(aNode("n1", 8))
		c.SetPod(aPod("a", 1, gpus(2), on("n1"), foreseen("[[0,1]]")))
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
		r.Status.HeartbeatTime = metav1.NewMicroTime(noon)
		if c.SetNodeTopology(r, noon) != nil {
			return
		}
		c.SetPod(aPod("b", 2, gpus(1)))
		v := c.View(nil, noon)
		for id := range v.Snapshot.Classes {
			gang.Place(v.Snapshot, &gang.Request{Seats: []gang.Seat{{UID: "b", Class: gang.ClassID(id)}}})
		}
		c.Handed()
	})
}

func TestScores(t *testing.T) {
	c := newCluster()
	for name, rack := range map[string]string{"n1": "a", "n2": "a", "n3": "b", "n4": "b"} {
		n := aNode(name, 8)
		n.Labels = map[string]string{"rack": rack}
		c.SetNode(n)
	}
	c.SetNode(aNode("cpu", 0))
	c.SetPod(aPod("p", 1, gpus(4), on("n1")))
	if got, want := c.Scores([]string{"n3", "cpu", "n1", "n2", "unknown"}), []int64{0, 10, 5, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
