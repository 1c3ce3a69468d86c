package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"pgregory.net/rapid"
)

// desk answers what a test tells it to.
type desk struct {
	seat   Seat
	err    error
	bind   func(context.Context, PodRef, string) error
	member bool
	breaks func([]types.UID) bool
}

func (d *desk) Seat(*corev1.Pod) (Seat, error) { return d.seat, d.err }

// Scores is each node's number: n7 has 7.
func (d *desk) Scores(nodes []string) []int64 {
	var out []int64
	for _, n := range nodes {
		out = append(out, int64(n[1]-'0'))
	}
	return out
}

func (d *desk) Bind(ctx context.Context, pod PodRef, node string) error {
	return d.bind(ctx, pod, node)
}

func (d *desk) Member(*corev1.Pod) bool { return d.member }

func (d *desk) Breaks(victims []types.UID) bool { return d.breaks(victims) }

func newHandler(t testing.TB, d *desk) (http.Handler, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	return New(Options{
		Seats: d, Binder: d, Victims: d, Ready: func() error { return nil }, BindTimeout: time.Minute,
		Registerer: reg, Gatherer: reg, Log: slog.New(slog.DiscardHandler),
	}), reg
}

// call posts a value and decodes the answer.
func call[Out any](t testing.TB, h http.Handler, verb string, in any) (Out, int) {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	w := post(h, verb, bytes.NewReader(body))
	var out Out
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
	}
	return out, w.Code
}

func post(h http.Handler, verb string, body io.Reader) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Prefix+"/"+verb, body))
	return w
}

func args(names ...string) *extenderv1.ExtenderArgs {
	return &extenderv1.ExtenderArgs{Pod: &corev1.Pod{}, NodeNames: &names}
}

func TestFilter(t *testing.T) {
	const why = "gang ns/g: needs 4 nodes with 8 free nvidia.com/gpu each; 3 have them"
	cases := []struct {
		name       string
		seat       Seat
		err        error
		offered    []string
		want       []string
		unresolved map[string]string
		failed     map[string]string
		fault      string
	}{
		{name: "none of ours", seat: Seat{Any: true}, offered: []string{"n1", "n2"}, want: []string{"n1", "n2"}},
		{name: "reserved", seat: Seat{Node: "n2"}, offered: []string{"n1", "n2"}, want: []string{"n2"}},
		{
			name: "TestCase_F6 reserved and not offered", seat: Seat{Node: "n9"}, offered: []string{"n1", "n2"},
			unresolved: map[string]string{"n1": "reserved node n9 not offered"},
		},
		{name: "refused", seat: Seat{Refusal: why, Reason: "room"}, offered: []string{"n1", "n2"}, unresolved: map[string]string{"n1": why}},
		{
			name: "refused, preemption may help", seat: Seat{Refusal: why, Reason: "room", Resolvable: true}, offered: []string{"n1", "n2"},
			failed: map[string]string{"n1": why, "n2": elsewhere},
		},
		{name: "refused, nothing offered", seat: Seat{Refusal: why, Reason: "room"}},
		{name: "a fault", err: errors.New("the store is away"), offered: []string{"n1"}, fault: "the store is away"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h, _ := newHandler(t, &desk{seat: c.seat, err: c.err})
			if c.offered == nil {
				c.offered = []string{}
			}
			got, status := call[extenderv1.ExtenderFilterResult](t, h, "filter", args(c.offered...))
			if status != http.StatusOK || got.Error != c.fault {
				t.Fatalf("got status %d, error %q", status, got.Error)
			}
			if c.fault != "" {
				return
			}
			if !slices.Equal(*got.NodeNames, c.want) {
				t.Errorf("got nodes %v, want %v", *got.NodeNames, c.want)
			}
			if len(got.FailedNodes)+len(c.failed) > 0 && !cmp.Equal(map[string]string(got.FailedNodes), c.failed) {
				t.Errorf("failed %v, want %v", got.FailedNodes, c.failed)
			}
			if len(got.FailedAndUnresolvableNodes)+len(c.unresolved) > 0 && !cmp.Equal(map[string]string(got.FailedAndUnresolvableNodes), c.unresolved) {
				t.Errorf("unresolvable %v, want %v", got.FailedAndUnresolvableNodes, c.unresolved)
			}
		})
	}
}

// TestFilterAnswersOnlyWhatWasOffered: one other name would fail the whole call.
func TestFilterAnswersOnlyWhatWasOffered(t *testing.T) {
	d := &desk{}
	h, _ := newHandler(t, d)
	rapid.Check(t, func(r *rapid.T) {
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		offered := rapid.SliceOfDistinct(name, rapid.ID).Draw(r, "offered")
		d.seat = rapid.SampledFrom([]Seat{{Any: true}, {Node: "a"}, {Node: "z"}, {Refusal: "no"}, {Refusal: "no", Resolvable: true}}).Draw(r, "seat")
		got, _ := call[extenderv1.ExtenderFilterResult](t, h, "filter", args(offered...))
		for _, n := range *got.NodeNames {
			if !slices.Contains(offered, n) {
				r.Fatalf("answered %s of %v", n, offered)
			}
		}
	})
}

func TestPrioritize(t *testing.T) {
	h, _ := newHandler(t, &desk{seat: Seat{Node: "n2"}})
	got, _ := call[extenderv1.HostPriorityList](t, h, "prioritize", args("n1", "n2"))
	want := extenderv1.HostPriorityList{{Host: "n1", Score: 0}, {Host: "n2", Score: 10}}
	if !cmp.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, c := range map[string]struct {
		desk *desk
		want extenderv1.HostPriorityList
	}{
		"none of ours": {&desk{seat: Seat{Any: true}}, extenderv1.HostPriorityList{{Host: "n1", Score: 1}, {Host: "n7", Score: 7}}},
		"refused":      {&desk{seat: Seat{Refusal: "no"}}, extenderv1.HostPriorityList{{Host: "n1"}, {Host: "n7"}}},
		"a fault":      {&desk{seat: Seat{Any: true}, err: errors.New("away")}, extenderv1.HostPriorityList{{Host: "n1"}, {Host: "n7"}}},
	} {
		h, _ := newHandler(t, c.desk)
		if got, _ := call[extenderv1.HostPriorityList](t, h, "prioritize", args("n1", "n7")); !cmp.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestPreempt(t *testing.T) {
	victims := map[string]*extenderv1.MetaVictims{
		"n1": {Pods: []*extenderv1.MetaPod{{UID: "whole"}}, NumPDBViolations: 2},
		"n2": {Pods: []*extenderv1.MetaPod{{UID: "half"}}},
		"n3": {},
	}
	d := &desk{breaks: func(v []types.UID) bool { return slices.Contains(v, "half") }}
	h, _ := newHandler(t, d)
	got, _ := call[extenderv1.ExtenderPreemptionResult](t, h, "preempt", extenderv1.ExtenderPreemptionArgs{Pod: &corev1.Pod{}, NodeNameToMetaVictims: victims})
	if len(got.NodeNameToMetaVictims) != 2 || !cmp.Equal(got.NodeNameToMetaVictims["n1"], victims["n1"]) {
		t.Errorf("got %v", got.NodeNameToMetaVictims)
	}
	full := extenderv1.ExtenderPreemptionArgs{Pod: &corev1.Pod{}, NodeNameToVictims: map[string]*extenderv1.Victims{
		"n1": {Pods: []*corev1.Pod{{}}, NumPDBViolations: 1}, "n2": nil,
	}}
	full.NodeNameToVictims["n1"].Pods[0].UID = "whole"
	got, _ = call[extenderv1.ExtenderPreemptionResult](t, h, "preempt", full)
	if v := got.NodeNameToMetaVictims["n1"]; len(got.NodeNameToMetaVictims) != 1 || v.NumPDBViolations != 1 || v.Pods[0].UID != "whole" {
		t.Errorf("got %v", got.NodeNameToMetaVictims)
	}
	d.member = true
	got, _ = call[extenderv1.ExtenderPreemptionResult](t, h, "preempt", extenderv1.ExtenderPreemptionArgs{Pod: &corev1.Pod{}, NodeNameToMetaVictims: victims})
	if len(got.NodeNameToMetaVictims) != 0 {
		t.Errorf("a member of a gang may evict for itself: %v", got.NodeNameToMetaVictims)
	}
}

func TestBind(t *testing.T) {
	var bound []string
	d := &desk{bind: func(_ context.Context, pod PodRef, node string) error {
		if node == "bad" {
			return errors.New("the gang did not start")
		}
		bound = append(bound, fmt.Sprint(pod, node))
		return nil
	}}
	h, _ := newHandler(t, d)
	whole := extenderv1.ExtenderBindingArgs{PodName: "p", PodNamespace: "ns", PodUID: "u", Node: "n1"}
	if got, status := call[extenderv1.ExtenderBindingResult](t, h, "bind", whole); got.Error != "" || status != http.StatusOK {
		t.Errorf("got %q, status %d", got.Error, status)
	}
	if !slices.Equal(bound, []string{"{ns p u}n1"}) {
		t.Errorf("bound %v", bound)
	}
	bad := whole
	bad.Node = "bad"
	if got, _ := call[extenderv1.ExtenderBindingResult](t, h, "bind", bad); got.Error != "the gang did not start" {
		t.Errorf("got %q", got.Error)
	}
	for part, drop := range map[string]func(*extenderv1.ExtenderBindingArgs){
		"PodName":      func(a *extenderv1.ExtenderBindingArgs) { a.PodName = "" },
		"PodNamespace": func(a *extenderv1.ExtenderBindingArgs) { a.PodNamespace = "" },
		"PodUID":       func(a *extenderv1.ExtenderBindingArgs) { a.PodUID = "" },
		"Node":         func(a *extenderv1.ExtenderBindingArgs) { a.Node = "" },
	} {
		lacking := whole
		drop(&lacking)
		body, err := json.Marshal(lacking)
		if err != nil {
			t.Fatal(err)
		}
		if w := post(h, "bind", bytes.NewReader(body)); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), part+" is missing") {
			t.Errorf("without %s: %d %s", part, w.Code, w.Body)
		}
	}
}

// bigBody is a body of 50 MB that is not held in memory.
func bigBody() io.Reader {
	return io.MultiReader(strings.NewReader(`{"Pod":{},"NodeNames":["`), io.LimitReader(endless{}, 50<<20), strings.NewReader(`"]}`))
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'n'
	}
	return len(p), nil
}

func TestBadRequests(t *testing.T) {
	d := &desk{bind: func(context.Context, PodRef, string) error { return nil }, breaks: func([]types.UID) bool { return false }}
	h, reg := newHandler(t, d)
	bodies := map[string]struct {
		body string
		code int
	}{
		"empty object":  {`{}`, http.StatusBadRequest},
		"nothing":       {``, http.StatusBadRequest},
		"null":          {`null`, http.StatusBadRequest},
		"cut":           {`{"Pod":{"meta`, http.StatusBadRequest},
		"another type":  {`["a"]`, http.StatusBadRequest},
		"wrong field":   {`{"Pod":7,"PodName":{},"Node":[]}`, http.StatusBadRequest},
		"more after it": {`{"Pod":{},"NodeNames":["n"],"PodName":"p","PodNamespace":"s","PodUID":"u","Node":"n"} {}`, http.StatusBadRequest},
		"no json":       {"\x00\xff", http.StatusBadRequest},
	}
	for _, verb := range []string{"filter", "prioritize", "preempt", "bind"} {
		for name, b := range bodies {
			if w := post(h, verb, strings.NewReader(b.body)); w.Code != b.code || w.Body.Len() == 0 {
				t.Errorf("%s: %s: got %d %s", verb, name, w.Code, w.Body)
			}
		}
		if w := post(h, verb, bigBody()); w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: 50 MB without a length: got %d", verb, w.Code)
		}
		r := httptest.NewRequest(http.MethodPost, Prefix+"/"+verb, bigBody())
		r.ContentLength = 50 << 20
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: 50 MB: got %d", verb, w.Code)
		}
	}
	if n := testutil.CollectAndCount(reg, "lockstep_extender_panics_total"); n != 1 {
		t.Errorf("got %d series of panics", n)
	}
}

// TestCase_F4_WholeNodesAreRefused with a word on what to change.
func TestCase_F4_WholeNodesAreRefused(t *testing.T) {
	h, _ := newHandler(t, &desk{seat: Seat{Any: true}})
	body := `{"Pod":{},"Nodes":{"items":[{"metadata":{"name":"n1"}}]}}`
	if w := post(h, "filter", strings.NewReader(body)); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "nodeCacheCapable: true") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestPanicIsOneCallsError(t *testing.T) {
	calls := 0
	d := &desk{bind: func(context.Context, PodRef, string) error {
		if calls++; calls == 1 {
			panic("boom")
		}
		return nil
	}}
	h, reg := newHandler(t, d)
	a := extenderv1.ExtenderBindingArgs{PodName: "p", PodNamespace: "ns", PodUID: "u", Node: "n"}
	if _, status := call[extenderv1.ExtenderBindingResult](t, h, "bind", a); status != http.StatusInternalServerError {
		t.Errorf("got %d", status)
	}
	if _, status := call[extenderv1.ExtenderBindingResult](t, h, "bind", a); status != http.StatusOK {
		t.Errorf("after a panic: got %d", status)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader("# HELP lockstep_extender_panics_total Calls that ended in a panic. Is there a bug?\n# TYPE lockstep_extender_panics_total counter\nlockstep_extender_panics_total 1\n"), "lockstep_extender_panics_total"); err != nil {
		t.Error(err)
	}
}

func TestMetricsAreClean(t *testing.T) {
	d := &desk{seat: Seat{Refusal: "no", Reason: "room"}, breaks: func([]types.UID) bool { return true }, bind: func(context.Context, PodRef, string) error { return nil }}
	h, reg := newHandler(t, d)
	call[extenderv1.ExtenderFilterResult](t, h, "filter", args("n1"))
	call[extenderv1.HostPriorityList](t, h, "prioritize", args("n1"))
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func FuzzVerbs(f *testing.F) {
	verbs := []string{"filter", "prioritize", "preempt", "bind"}
	for i := range verbs {
		f.Add(byte(i), []byte(`{"Pod":{"metadata":{"name":"p"}},"NodeNames":["n1"],"PodName":"p","PodNamespace":"n","PodUID":"u","Node":"n1","NodeNameToMetaVictims":{"n1":null}}`))
	}
	d := &desk{seat: Seat{Node: "n1"}, breaks: func([]types.UID) bool { return false }, bind: func(context.Context, PodRef, string) error { return nil }}
	h, _ := newHandler(f, d)
	f.Fuzz(func(t *testing.T, which byte, body []byte) {
		if w := post(h, verbs[int(which)%len(verbs)], bytes.NewReader(body)); w.Code >= http.StatusInternalServerError {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// BenchmarkFilter is Filter and Prioritize with 5,000 names.
func BenchmarkFilter(b *testing.B) {
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprintf("node-%d.example.internal", i)
	}
	body, err := json.Marshal(args(names...))
	if err != nil {
		b.Fatal(err)
	}
	h, _ := newHandler(b, &desk{seat: Seat{Node: names[4711]}})
	b.ReportAllocs()
	for b.Loop() {
		for _, verb := range []string{"filter", "prioritize"} {
			if w := post(h, verb, bytes.NewReader(body)); w.Code != http.StatusOK {
				b.Fatal(w.Code)
			}
		}
	}
}
