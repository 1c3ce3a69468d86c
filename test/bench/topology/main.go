// Command topology measures, on one machine and side by side, how well gangs are
// placed: in how narrow a domain, and on how well-connected GPUs.
//
//	plain      kube-scheduler as it comes, which spreads
//	packed     kube-scheduler that fills nodes (NodeResourcesFit: MostAllocated)
//	native     kube-scheduler's own gangs, each in one rack
//	           (GenericWorkload, TopologyAwareWorkloadScheduling)
//	lockstep   Lockstep with node agents
//
// All get the same gangs in the same order, on 64 simulated nodes of five kinds,
// whose device plugins pick as NVIDIA's does. docs/benchmarks.md has results.
//
//	go run ./test/bench/topology [--gangs 80] [--seed 1] [--arms plain,packed,native,lockstep]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/lockstep-scheduler/lockstep/test/lab"
	"github.com/lockstep-scheduler/lockstep/test/stack"
)

// arm is one way to schedule gangs.
type arm struct {
	name     string
	gangs    bool // Lockstep's annotations
	native   bool
	weighted string // kube-scheduler's configuration; empty: its own
}

const packed = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources: [{name: nvidia.com/gpu, weight: 1}]
`

var arms = []arm{
	{name: "plain"}, {name: "packed", weighted: packed}, {name: "native", native: true}, {name: "lockstep", gangs: true},
}

// job is a gang of the load, and after how many more it ends.
type job struct{ pods, gpus, lasts int }

// load is the same for every arm.
func load(seed uint64, n int) []job {
	rng := rand.New(rand.NewPCG(seed, 0))
	out := make([]job, n)
	for i := range out {
		out[i] = job{pods: 1, gpus: []int{1, 2, 2, 4, 4, 8}[rng.IntN(6)], lasts: 8 + rng.IntN(24)}
		if rng.IntN(2) == 0 {
			out[i].pods = 2 + rng.IntN(5)
		}
	}
	return out
}

func main() {
	gangs := flag.Int("gangs", 80, "gangs that arrive")
	seed := flag.Uint64("seed", 1, "of the load")
	chosen := flag.String("arms", "plain,packed,native,lockstep", "arms to run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, load(*seed, *gangs), strings.Split(*chosen, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "topology:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, jobs []job, chosen []string) error {
	fmt.Fprintf(out, "%-9s %8s %22s %22s %14s %14s\n", "", "placed", "in the smallest domain", "ring, of the best", "as the best", "half started")
	for _, a := range arms {
		if !slices.Contains(chosen, a.name) {
			continue
		}
		t, err := measure(ctx, a, jobs)
		if err != nil {
			return fmt.Errorf("arm %s: %w", a.name, err)
		}
		fmt.Fprintf(out, "%-9s %5d/%2d %22.2f %22.2f %14.2f %14d\n", a.name, t.placed, len(jobs), t.narrow(), t.ring(), t.asBest(), t.half)
	}
	return nil
}

// nodes are 16 racks of 4, in 4 blocks: of each kind three racks, and one more of
// the first.
func nodes() string {
	var b strings.Builder
	b.WriteString("nodes:\n")
	for rack := range 16 {
		k := kinds[rack%len(kinds)]
		fmt.Fprintf(&b, "- {name: \"%s-%d-{n}\", count: 4, gpus: %d, labels: {%s: r%d, %s: b%d}}\n",
			k.name, rack, k.gpus, lab.LabelRack, rack, lab.LabelBlock, rack/4)
	}
	return b.String()
}

func options(a arm) stack.Options {
	o := stack.Options{Nodes: nodes()}
	switch {
	case a.gangs:
		o.Replicas = 1
	case a.native:
		o.Lab.FeatureGates = map[string]bool{"GenericWorkload": true, "TopologyAwareWorkloadScheduling": true}
		o.Lab.RuntimeConfig = map[string]string{"scheduling.k8s.io/v1beta1": "true"}
	case a.weighted != "":
		o.Lab.SchedulerConfig = []byte(a.weighted)
	}
	return o
}
