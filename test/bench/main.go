// Command bench measures, on one machine and side by side, how fast gangs start:
//
//	plain      kube-scheduler without gangs and without Lockstep
//	native     kube-scheduler's own gangs (GenericWorkload, scheduling.k8s.io/v1beta1)
//	lockstep   Lockstep, pods with a controller: one write ungates and pins
//	nominate   Lockstep, pods without a controller: two writes, nominate and ungate
//
// Only ratios between the arms mean anything. docs/benchmarks.md has results.
//
//	go run ./test/bench [--repeat 5] [--nodes 1000] [--arms plain,native,lockstep,nominate] [--writes]
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lockstep-scheduler/lockstep/test/lab"
	"github.com/lockstep-scheduler/lockstep/test/stack"
)

// arm is one way to schedule gangs.
type arm struct {
	name   string
	native bool
	gangs  bool // Lockstep's annotations
	owned  bool // pods have a controller
}

var arms = []arm{
	{name: "plain", owned: true},
	{name: "native", native: true, owned: true},
	{name: "lockstep", gangs: true, owned: true},
	{name: "nominate", gangs: true},
}

// scenario is a load.
type scenario struct{ gangs, size, gpus int }

func (s scenario) String() string { return fmt.Sprintf("%d×%d, %d GPU", s.gangs, s.size, s.gpus) }

var scenarios = []scenario{{125, 8, 1}, {1, 1000, 1}, {125, 8, 8}, {1, 1000, 8}}

func main() {
	repeat := flag.Int("repeat", 5, "runs of each arm, taken in turn; medians are shown")
	nodes := flag.Int("nodes", 1000, "nodes of 8 GPUs")
	chosen := flag.String("arms", "plain,native,lockstep,nominate", "arms to run")
	loads := flag.String("loads", "", "loads to run, by number from 0, as 0,2; empty: all")
	writes := flag.Bool("writes", false, "count the API server's writes to pods instead of measuring times")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{nodes: *nodes, writes: *writes, results: map[string]map[scenario][]result{}}
	if *loads != "" {
		var chosen []scenario
		for word := range strings.SplitSeq(*loads, ",") {
			n, err := strconv.Atoi(word)
			if err != nil || n < 0 || n >= len(scenarios) {
				fmt.Fprintf(os.Stderr, "bench: --loads: %q is not a number from 0 to %d\n", word, len(scenarios)-1)
				os.Exit(2)
			}
			chosen = append(chosen, scenarios[n])
		}
		scenarios = chosen
	}
	if err := b.run(ctx, *repeat, strings.Split(*chosen, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	nodes   int
	writes  bool
	results map[string]map[scenario][]result
}

func (b *bench) run(ctx context.Context, repeat int, chosen []string) error {
	for i := range repeat {
		for _, a := range arms {
			if !slices.Contains(chosen, a.name) {
				continue
			}
			if err := b.arm(ctx, a, i); err != nil {
				return fmt.Errorf("arm %s: %w", a.name, err)
			}
		}
	}
	if !b.writes {
		b.report(os.Stdout)
	}
	return nil
}

// arm starts a cluster for one arm and runs every scenario on it.
func (b *bench) arm(ctx context.Context, a arm, round int) (err error) {
	folder, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	o := stack.Options{
		Nodes:     fmt.Sprintf("nodes: [{name: \"gpu-{n}\", count: %d, gpus: 8, perRack: 16, perBlock: 128}]", b.nodes),
		Scheduler: lab.SchedulerPatch{QPS: 2000, Burst: 4000},
		LogDir:    folder,
	}
	if a.gangs {
		o.Replicas = 1
		o.ExtenderArgs = []string{"--kube-api-qps=2000", "--kube-api-burst=4000"}
	} else {
		o.Lab.ClientQPS, o.Lab.ClientBurst = 2000, 4000
	}
	if a.native {
		o.Lab.FeatureGates = map[string]bool{"GenericWorkload": true}
		o.Lab.RuntimeConfig = map[string]string{"scheduling.k8s.io/v1beta1": "true"}
	}
	if b.writes {
		o.Lab.AuditLog = filepath.Join(folder, "audit.log")
	}
	s, err := stack.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if e := s.Stop(); err == nil {
			err = e
		}
	}()
	for i, sc := range scenarios {
		r, err := measure(ctx, s, a, sc, fmt.Sprintf("bench-%d", i))
		if err != nil {
			return fmt.Errorf("%s: %w", sc, err)
		}
		fmt.Fprintf(os.Stderr, "round %d  %-9s %-14s %s\n", round, a.name, sc, r)
		if b.results[a.name] == nil {
			b.results[a.name] = map[scenario][]result{}
		}
		b.results[a.name][sc] = append(b.results[a.name][sc], r)
	}
	if b.writes {
		return countWrites(a, o.Lab.AuditLog)
	}
	return nil
}

// countWrites shows who wrote how often to pods, per pod.
func countWrites(a arm, path string) error {
	counts, err := lab.CountAudit(path)
	if err != nil {
		return err
	}
	pods := 0
	for _, s := range scenarios {
		pods += s.gangs * s.size
	}
	lines := map[string]int{}
	for _, c := range counts {
		if c.Code < 300 {
			lines[fmt.Sprintf("%s %s by %s", c.Verb, c.Resource, c.User)] += c.Requests
		}
	}
	fmt.Printf("%s: writes per pod\n", a.name)
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		fmt.Printf("  %5.2f %s\n", float64(lines[line])/float64(pods), line)
	}
	return nil
}
