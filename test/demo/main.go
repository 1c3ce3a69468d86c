// Command demo shows on a real control plane what Lockstep does: four training jobs
// of 64 GPUs each, created at the same moment in a cluster of 128. Without a gang
// each gets a part of the room and none can work; with Lockstep two start whole,
// and the others when these are done. Then smaller ones come, which land on GPUs
// that are linked.
//
//	go run ./test/demo [--keep]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/test/stack"
)

const nodes = `
nodes:
- {name: "gpu-{n}", count: 16, gpus: 8, model: H100, perRack: 4, perBlock: 8}
`

const (
	jobs       = 4
	podsPerJob = 8
	runSeconds = 6
	namespace  = "demo"
	within     = 2 * time.Minute
)

func main() {
	keep := flag.Bool("keep", false, "leave the cluster running, until Ctrl-C")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// stage is the running demo.
type stage struct {
	*stack.Stack
	out     io.Writer
	started time.Time
	rec     *stack.Recorder
	links   *links
}

func run(ctx context.Context, out io.Writer, keep bool) (err error) {
	d := &stage{out: out, started: time.Now()}
	d.say("Bringing up a real control plane with 16 nodes of 8 GPUs, in 4 racks (a first build takes minutes)")
	if d.Stack, err = stack.Start(ctx, stack.Options{Nodes: nodes, Replicas: 1, Progress: indented{out}}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	if d.rec, err = stack.Record(ctx, d.Client); err != nil {
		return err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := d.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the namespace %s: %w", namespace, err)
	}
	agents, stopAgents := context.WithCancel(ctx)
	wait, err := d.startAgents(agents)
	defer func() {
		stopAgents()
		wait()
	}()
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{d.without, d.with, d.linked, d.verify} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if keep {
		d.say("The cluster stays up until Ctrl-C. Look around in another terminal:\n\n    export KUBECONFIG=%s\n    kubectl get pods -n %s -o wide\n    curl %s/metrics\n",
			d.Lab.Kubeconfig(), namespace, d.Replicas[0].URL())
		<-ctx.Done()
	}
	return nil
}

func (d *stage) say(format string, args ...any) {
	fmt.Fprintf(d.out, "[%5.1fs] "+format+"\n", append([]any{time.Since(d.started).Seconds()}, args...)...)
}

// indented puts what others report under the step that it belongs to.
type indented struct{ io.Writer }

func (i indented) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if _, err := io.WriteString(i.Writer, "         - "+line); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func workload(name string, number int) stack.Workload {
	return stack.Workload{Namespace: namespace, Name: fmt.Sprintf("%s-%d", name, number), Pods: podsPerJob, GPUs: 8}
}

// without shows what single pods do: each job gets some of its pods placed.
func (d *stage) without(ctx context.Context) error {
	d.say("1. Without gangs: %d jobs of %d pods with 8 GPUs each, created interleaved; the cluster has room for two jobs", jobs, podsPerJob)
	var all []stack.Workload
	for j := range jobs {
		all = append(all, workload("plain", j))
	}
	if err := d.CreatePods(ctx, stack.Interleave(all...)...); err != nil {
		return err
	}
	counts := map[string]int{}
	deadline := time.Now().Add(within)
	for total := 0; total < 16; {
		list, err := d.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("counting the plain pods: %w", err)
		}
		total = 0
		clear(counts)
		for i := range list.Items {
			p := &list.Items[i]
			counts[p.Labels["app"]] += 0
			if p.Spec.NodeName != "" {
				counts[p.Labels["app"]]++
				total++
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the plain pods did not fill the cluster within %s: %v", within, counts)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		d.say("   %s runs %d of %d pods%s", name, counts[name], podsPerJob, map[bool]string{true: "", false: ": it holds GPUs and cannot work"}[counts[name] == podsPerJob])
	}
	if err := d.Client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("deleting the plain pods: %w", err)
	}
	return nil
}

// with submits the same jobs as gangs and tells what becomes of each.
func (d *stage) with(ctx context.Context) error {
	d.say("2. With Lockstep: the same, as Jobs whose pods carry lockstep.scheduler/gang and lockstep.scheduler/min-member: %q", fmt.Sprint(podsPerJob))
	for j := range jobs {
		w := workload("train", j)
		w.Gang, w.RunSeconds = w.Name, runSeconds
		if err := d.CreateJob(ctx, w); err != nil {
			return err
		}
	}
	told := map[string]string{}
	return d.rec.Await(ctx, within, func(all map[string]stack.Gang) error {
		done := 0
		for _, name := range slices.Sorted(maps.Keys(all)) {
			g := all[name]
			if status := describe(g); status != told[name] && status != "" {
				told[name] = status
				name := strings.TrimPrefix(name, namespace+"/")
				if g.Bound == podsPerJob {
					status += d.links.foreseen(ctx, name)
				}
				d.say("   %s %s", name, status)
			}
			if g.Done >= podsPerJob {
				done++
			}
		}
		if done < jobs {
			return fmt.Errorf("%d of %d gangs are done", done, jobs)
		}
		return nil
	})
}

// describe says where a gang stands; empty while it changes.
func describe(g stack.Gang) string {
	racks := map[string]bool{}
	for _, node := range g.Nodes {
		var n int
		if _, err := fmt.Sscanf(node, "gpu-%d", &n); err == nil {
			racks[fmt.Sprintf("r%d", n/4)] = true
		}
	}
	switch {
	case g.Done >= podsPerJob:
		return "is done"
	case g.Bound == podsPerJob:
		took := g.LastBound.Sub(g.FirstBound).Round(time.Millisecond)
		return fmt.Sprintf("has started whole, in %s: all %d pods bound within %s", strings.Join(slices.Sorted(maps.Keys(racks)), " and "), g.Bound, took)
	case g.Bound == 0 && g.Done == 0 && len(g.Messages) == 1 && strings.HasPrefix(g.Messages[0], "gang "):
		_, why, _ := strings.Cut(g.Messages[0], ": ")
		return "waits: " + why
	}
	return ""
}

// verify holds the run to what was promised.
func (d *stage) verify(ctx context.Context) error {
	if err := d.rec.Settled(ctx, time.Second); err != nil {
		return err
	}
	d.say("4. No gang was ever half started, and no GPU was used twice: checked against every pod event of the run")
	return nil
}
