// Package e2e runs Lockstep on a real control plane, with the manifests and the
// scheduler configuration that are shipped, and watches every pod.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/gang/reservation/redistest"
	"github.com/lockstep-scheduler/lockstep/test/stack"
)

// The cluster that most tests share, one after the other: 16 nodes of 8 GPUs in 4
// racks and 2 blocks, and 2 CPU nodes; two replicas on one Redis, which
// kube-scheduler asks in turn.
const sharedNodes = `
nodes:
- {name: "gpu-{n}", count: 16, gpus: 8, model: H100, perRack: 4, perBlock: 8}
- {name: "cpu-{n}", count: 2, cpu: "64"}
`

var shared *world

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("the tests on a real control plane take minutes; they are left out of -short")
		os.Exit(0)
	}
	code := 1
	func() {
		ctx := context.Background()
		folder, err := os.MkdirTemp("", "lockstep-e2e-")
		if err != nil {
			fmt.Println(err)
			return
		}
		defer func() { _ = os.RemoveAll(folder) }()
		url, stop, err := redistest.Run(folder)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer stop()
		s, err := stack.Start(ctx, stack.Options{
			Nodes: sharedNodes, Replicas: 2, RedisURL: url, Race: true, Progress: os.Stderr,
			ExtenderArgs: []string{"--heal-grace=15s"}, LogDir: os.Getenv("LOCKSTEP_E2E_LOGS"),
		})
		if err != nil {
			fmt.Println("starting the cluster:", err)
			return
		}
		defer func() {
			if err := s.Stop(); err != nil {
				fmt.Println("stopping the cluster:", err)
				code = 1
			}
		}()
		shared = &world{Stack: s, redis: url}
		code = m.Run()
	}()
	os.Exit(code)
}

// world is a stack as tests use it.
type world struct {
	*stack.Stack
	redis string
}

// scene is one test's part of a world: a namespace and a record of what happens.
type scene struct {
	*stack.Stack
	t   *testing.T
	ns  string
	rec *stack.Recorder
	url string
}

// begin gives the test a namespace. At its end everything in it is deleted, and
// the store must be empty and no invariant violated.
func (w *world) begin(t *testing.T) *scene {
	t.Helper()
	s := &scene{Stack: w.Stack, t: t, url: w.redis}
	s.ns = strings.ToLower(strings.NewReplacer("_", "-", "/", "-").Replace(t.Name()))
	s.ns = strings.TrimRight(s.ns[:min(len(s.ns), 40)], "-") + fmt.Sprintf("-%d", time.Now().UnixNano()%1e6)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns}}
	if _, err := w.Client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.rec, err = stack.Record(context.WithoutCancel(t.Context()), w.Client); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

const cleanWithin = 60 * time.Second

func (s *scene) end() {
	if s.t.Failed() {
		s.explain()
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanWithin)
	defer cancel()
	// Jobs and pods first: a namespace takes seconds to end, and nobody waits for that.
	background := metav1.DeletePropagationBackground
	err := errors.Join(
		s.Client.BatchV1().Jobs(s.ns).DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}),
		s.Client.CoreV1().Pods(s.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		s.Client.CoreV1().Namespaces().Delete(ctx, s.ns, metav1.DeleteOptions{}),
	)
	if err != nil {
		s.t.Error(err)
	}
	err = s.rec.Await(ctx, cleanWithin, func(gangs map[string]stack.Gang) error {
		for name := range gangs {
			if strings.HasPrefix(name, s.ns+"/") {
				return fmt.Errorf("gang %s still has pods", name)
			}
		}
		return nil
	})
	if err != nil {
		s.t.Error("deleting the namespace: ", err)
	}
	for _, v := range s.rec.Stop() {
		s.t.Error("invariant violated: ", v)
	}
	s.emptyStore(ctx)
}

// emptyStore waits until nothing of the namespace is left in Redis.
func (s *scene) emptyStore(ctx context.Context) {
	s.t.Helper()
	if s.url == "" {
		return // embedded: it is not to be looked at
	}
	client := redis.NewClient(must(redis.ParseURL(s.url)))
	defer func() { _ = client.Close() }()
	var left []string
	for ctx.Err() == nil {
		left = nil
		for _, hash := range []string{"gangs", "verdicts"} {
			fields, err := client.HKeys(ctx, "lockstep:{default}:"+hash).Result()
			if err != nil {
				s.t.Error(err)
				return
			}
			for _, f := range fields {
				if strings.HasPrefix(f, s.ns+"/") {
					left = append(left, hash+" "+f)
				}
			}
		}
		if len(left) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Errorf("the store still has %v", left)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// explain shows where things stand when a test fails.
func (s *scene) explain() {
	for name, g := range s.rec.Gangs() {
		s.t.Logf("gang %s: %+v", name, g)
	}
	events, err := s.Client.CoreV1().Events(s.ns).List(context.Background(), metav1.ListOptions{})
	if err == nil {
		for _, e := range events.Items[max(0, len(events.Items)-40):] {
			s.t.Logf("event %s %s %s: %s", e.InvolvedObject.Name, e.Type, e.Reason, e.Message)
		}
	}
	for _, r := range s.Replicas {
		text, err := os.ReadFile(r.Log)
		if err == nil {
			s.t.Logf("%s:\n%s", r.Log, text[max(0, len(text)-6000):])
		}
	}
}

// workload fills in the namespace.
func (s *scene) workload(w stack.Workload) stack.Workload {
	w.Namespace = s.ns
	return w
}

// create creates the workload's pods, without a controller.
func (s *scene) create(workloads ...stack.Workload) {
	s.t.Helper()
	for i := range workloads {
		workloads[i].Namespace = s.ns
	}
	if err := s.CreatePods(s.t.Context(), stack.Interleave(workloads...)...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) job(w stack.Workload) {
	s.t.Helper()
	if err := s.CreateJob(s.t.Context(), s.workload(w)); err != nil {
		s.t.Fatal(err)
	}
}

// await waits for a condition on the namespace's gangs, by their bare names.
func (s *scene) await(limit time.Duration, condition func(map[string]stack.Gang) error) {
	s.t.Helper()
	err := s.rec.Await(s.t.Context(), limit, func(all map[string]stack.Gang) error {
		return condition(s.own(all))
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// running waits until the namespace has n pods and all of them run, and names them.
func (s *scene) running(limit time.Duration, n int) []string {
	s.t.Helper()
	var names []string
	err := wait(s.t.Context(), limit, func(ctx context.Context) error {
		list, err := s.Client.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		if err != nil {
			return err
		}
		names = nil
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		if len(names) != n {
			return fmt.Errorf("%d pods run, want %d", len(names), n)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return names
}

func (s *scene) own(all map[string]stack.Gang) map[string]stack.Gang {
	own := map[string]stack.Gang{}
	for name, g := range all {
		if bare, ok := strings.CutPrefix(name, s.ns+"/"); ok {
			own[bare] = g
		}
	}
	return own
}

func (s *scene) gangs() map[string]stack.Gang { return s.own(s.rec.Gangs()) }

// bound is a condition: the gang has that many bound members.
func bound(name string, n int) func(map[string]stack.Gang) error {
	return func(gangs map[string]stack.Gang) error {
		if g := gangs[name]; g.Bound != n {
			return fmt.Errorf("gang %s has %d bound members, want %d (%v)", name, g.Bound, n, g.Messages)
		}
		return nil
	}
}

// settled checks that every gang has started whole or not at all.
func (s *scene) settled(quiet time.Duration) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	if err := s.rec.Settled(ctx, quiet); err != nil {
		s.t.Fatal(err)
	}
}
