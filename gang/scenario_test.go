package gang

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-scheduler/lockstep/topology"
)

var update = flag.Bool("update", false, "write what Place answers into testdata/place")

// TestScenarios runs testdata/place/*.txt. A file has scenarios like this one, each
// up to an empty line:
//
//	== title
//	node n1..n4 rack=r1 gpu=8 used.gpu=2 out=cordoned
//	seats worker 4 gpu=8
//	required rack
//	---
//	rack r1
//	n1: worker-0
//
// Nodes have labels block, rack and pool; cpu in cores (64 by default), mem in Gi
// (512), gpu and pods (110) in pieces; used.* of each; and out, the reason why
// nobody may use them; links is a file of topology/testdata/matrices, and use, with
// it, the GPUs that others have, as 0,3, and taken the pods whose GPUs are not known,
// as 2,2; numa, that its kubelet keeps pods on one NUMA node. Seats have requests like these, pool, perNode, link, prefer, and optional.
// Further lines are required, preferred, slice, fixed and excluded. What comes
// after the line is the answer: the narrowest domain and who is where, or the
// code and text of the refusal.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/place/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of scenarios: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var out []string
			for scenario := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
				input, want, _ := strings.Cut(scenario, "\n---")
				title, _, _ := strings.Cut(input, "\n")
				got := answer(read(t, input))
				out = append(out, input+"\n---\n"+got)
				if diff := cmp.Diff(strings.TrimSpace(want), got); diff != "" && !*update {
					t.Errorf("%s\n%s", title, diff)
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(strings.Join(out, "\n\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// cell is a scenario's description of a node or of some seats.
type cell map[string]string

func (c cell) number(t *testing.T, key string, otherwise int64) int64 {
	if c[key] == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(c[key], 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: %v", key, c[key], err)
	}
	return n
}

// amounts gives cpu, memory, GPUs and pods as a Snapshot has them.
func (c cell) amounts(t *testing.T, prefix string, cpu, mem, pods int64) []int64 {
	return []int64{
		1000 * c.number(t, prefix+"cpu", cpu), c.number(t, prefix+"mem", mem) << 30,
		c.number(t, prefix+"gpu", 0), c.number(t, prefix+"pods", pods),
	}
}

// scene is a scenario as it is read.
type scene struct {
	nodes, seats []cell
	names        map[string][]string // of the nodes in the other lines
	levels       map[string]string
}

// read makes the planner's input of a scenario.
func read(t *testing.T, input string) (*Snapshot, *Request) {
	t.Helper()
	sc := scene{names: map[string][]string{}, levels: map[string]string{}}
	for line := range strings.Lines(input) {
		words := strings.Fields(line)
		switch words[0] {
		case "==", "#":
		case "node":
			for _, name := range names(t, words[1]) {
				sc.nodes = append(sc.nodes, cells(t, words[2:], "name", name))
			}
		case "seats":
			sc.seats = append(sc.seats, cells(t, words[3:], "role", words[1], "n", words[2]))
		case "required", "preferred", "slice":
			sc.levels[words[0]] = words[1]
		case "fixed", "excluded":
			for _, w := range words[1:] {
				sc.names[words[0]] = append(sc.names[words[0]], names(t, w)...)
			}
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return sc.build(t)
}

// names reads n2..n5 as n2 n3 n4 n5.
func names(t *testing.T, word string) []string {
	first, end, ok := strings.Cut(word, "..")
	if !ok {
		return []string{word}
	}
	stem := strings.TrimRight(first, "0123456789")
	from, err1 := strconv.Atoi(first[len(stem):])
	to, err2 := strconv.Atoi(strings.TrimPrefix(end, stem))
	if err1 != nil || err2 != nil {
		t.Fatalf("%q: want n1..n3", word)
	}
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, stem+strconv.Itoa(i))
	}
	return out
}

func cells(t *testing.T, words []string, more ...string) cell {
	c := cell{}
	for i := 0; i < len(more); i += 2 {
		c[more[i]] = more[i+1]
	}
	known := []string{"block", "rack", "pool", "out", "cpu", "mem", "gpu", "pods", "perNode", "optional", "links", "use", "taken", "numa", "link", "prefer"}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		if !slices.Contains(known, strings.TrimPrefix(key, "used.")) {
			t.Fatalf("what is %q?", w)
		}
		if value == "" {
			value = "yes"
		}
		c[key] = strings.ReplaceAll(value, "_", " ")
	}
	return c
}

func (sc *scene) build(t *testing.T) (*Snapshot, *Request) {
	list, byName := make([]topology.Node, 0, len(sc.nodes)), map[string]cell{}
	for _, n := range sc.nodes {
		list = append(list, topology.Node{Name: n["name"], Labels: n})
		byName[n["name"]] = n
	}
	levels := []topology.Level{{Name: "block", Keys: []string{"block"}}, {Name: "rack", Keys: []string{"rack"}}}
	s := &Snapshot{Tree: topology.Build(levels, list), Resources: []string{"cpu", "memory", "nvidia.com/gpu", "pods"}, GPU: 2}
	for i := range s.Tree.Len() {
		n := byName[s.Tree.Name(i)]
		allocatable, used := n.amounts(t, "", 64, 512, 110), n.amounts(t, "used.", 0, 0, 0)
		s.Allocatable = append(s.Allocatable, allocatable...)
		s.Free = append(s.Free, allocatable...)
		s.AssumeRequest(i, used)
	}
	sc.links(t, s, byName)
	r := &Request{Gang: Key{"ns", "g"}, Required: sc.levels["required"], Preferred: sc.levels["preferred"]}
	r.Slice, _ = strconv.Atoi(sc.levels["slice"])
	for _, seats := range sc.seats {
		s.Classes = append(s.Classes, class(t, s, seats, byName))
		for i := range int(seats.number(t, "n", 0)) {
			r.Seats = append(r.Seats, Seat{
				UID: fmt.Sprintf("%s-%d", seats["role"], i), Name: fmt.Sprintf("%s-%d", seats["role"], i), Role: seats["role"],
				Rank: i, Class: ClassID(len(s.Classes) - 1), Optional: seats["optional"] != "",
			})
		}
	}
	for _, name := range sc.names["fixed"] {
		n, _ := s.Tree.Number(name)
		r.Fixed = append(r.Fixed, n)
	}
	for _, name := range sc.names["excluded"] {
		if r.Excluded == nil {
			r.Excluded = make([]bool, s.Tree.Len())
		}
		n, _ := s.Tree.Number(name)
		r.Excluded[n] = true
	}
	return s, r
}

var catalog topology.Catalog

// links tells the snapshot what is known of the nodes' GPUs.
func (sc *scene) links(t *testing.T, s *Snapshot, nodes map[string]cell) {
	t.Helper()
	for i := range s.Tree.Len() {
		n := nodes[s.Tree.Name(i)]
		if n["links"] == "" {
			continue
		}
		if s.NodeGPUs == nil {
			s.NodeGPUs = make([]NodeGPUs, s.Tree.Len())
		}
		text, err := os.ReadFile("../topology/testdata/matrices/" + n["links"] + ".txt")
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
		gpus := NodeGPUs{Table: catalog.Table(g), Free: g.All()}
		for _, word := range strings.FieldsFunc(n["use"], func(r rune) bool { return r == ',' }) {
			gpu, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			gpus.Free &^= topology.SetOf(gpu)
			s.Row(i)[s.GPU]--
		}
		if n["numa"] != "" {
			gpus.Rule = topology.OneNUMANode
		}
		s.NodeGPUs[i] = gpus
		for _, word := range strings.FieldsFunc(n["taken"], func(r rune) bool { return r == ',' }) {
			k, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			s.AssumeRequest(i, []int64{0, 0, k, 1})
		}
	}
}

func requirement(t *testing.T, word string) topology.Requirement {
	t.Helper()
	if word == "" {
		return topology.Requirement{}
	}
	r, err := topology.ParseRequirement(word)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func class(t *testing.T, s *Snapshot, seats cell, nodes map[string]cell) Class {
	c := Class{Request: seats.amounts(t, "", 0, 0, 1), MaxPerNode: int(seats.number(t, "perNode", 0)), Eligible: make([]bool, s.Tree.Len())}
	c.LinkRequired, c.LinkPreferred = requirement(t, seats["link"]), requirement(t, seats["prefer"])
	out := map[string]int{}
	for i := range s.Tree.Len() {
		n := nodes[s.Tree.Name(i)]
		why := n["out"]
		if why == "" && seats["pool"] != "" && n["pool"] != seats["pool"] {
			why = "not matched by node selector or affinity"
		}
		if c.Eligible[i] = why == ""; why != "" {
			out[why]++
		}
	}
	for why, n := range out {
		c.Ineligible = append(c.Ineligible, Count{why, n})
	}
	slices.SortFunc(c.Ineligible, func(a, b Count) int { return strings.Compare(a.Reason, b.Reason) })
	return c
}

// answer writes down what Place says.
func answer(s *Snapshot, r *Request) string {
	plan, why := Place(s, r)
	if plan == nil {
		return string(why.Code) + ": " + why.String()
	}
	lines := []string{strings.TrimSpace(plan.Level + " " + plan.Domain)}
	for n := range s.Tree.Len() {
		var seats []string
		for i, node := range plan.Nodes {
			if node == n {
				seats = append(seats, r.Seats[i].Name)
			}
		}
		if len(seats) > 0 {
			lines = append(lines, s.Tree.Name(n)+": "+strings.Join(shorten(seats), " "))
		}
	}
	var nowhere []string
	for i, node := range plan.Nodes {
		if node < 0 {
			nowhere = append(nowhere, r.Seats[i].Name)
		}
	}
	if len(nowhere) > 0 {
		lines = append(lines, "nowhere: "+strings.Join(shorten(nowhere), " "))
	}
	return strings.Join(lines, "\n")
}

// shorten writes runs of w-0 w-1 w-2 as w-0..2.
func shorten(seats []string) []string {
	var out []string
	for i := 0; i < len(seats); {
		cut := strings.LastIndexByte(seats[i], '-')
		first, _ := strconv.Atoi(seats[i][cut+1:])
		j := i + 1
		for j < len(seats) && seats[j] == fmt.Sprintf("%s-%d", seats[i][:cut], first+j-i) {
			j++
		}
		text := seats[i]
		if j > i+1 {
			text += fmt.Sprintf("..%d", first+j-i-1)
		}
		out = append(out, text)
		i = j
	}
	return out
}
