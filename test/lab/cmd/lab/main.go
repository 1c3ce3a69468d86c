// Command lab builds and runs a real Kubernetes control plane with fake nodes.
//
//	lab build                       build what is missing
//	lab up --nodes FILE             run it until Ctrl-C
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockstep-scheduler/lockstep/test/lab"
)

const usage = `usage: lab build
       lab up [--nodes FILE] [--kubeconfig FILE] [--scheduler-config FILE] [--log-dir DIR]
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return flag.ErrHelp
	}
	switch args[0] {
	case "build":
		_, err := lab.Binaries(ctx, os.Stderr)
		return err
	case "up":
		return up(ctx, args[1:])
	}
	fmt.Fprint(os.Stderr, usage)
	return fmt.Errorf("unknown command %q", args[0])
}

func up(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("lab up", flag.ContinueOnError)
	nodes := f.String("nodes", "", "YAML `file` that describes the nodes")
	kubeconfig := f.String("kubeconfig", "", "`file` to write the administrator's kubeconfig to; empty: only its path is printed")
	scheduler := f.String("scheduler-config", "", "KubeSchedulerConfiguration `file`")
	logs := f.String("log-dir", "", "`folder` for the components' logs")
	if err := f.Parse(args); err != nil {
		return err
	}
	opts := lab.Options{Progress: os.Stderr, LogDir: *logs}
	var pools []lab.NodePool
	for _, file := range []struct {
		path string
		take func([]byte) error
	}{
		{*scheduler, func(text []byte) error { opts.SchedulerConfig = text; return nil }},
		{*nodes, func(text []byte) (err error) { pools, err = lab.ParseNodes(text); return err }},
	} {
		if file.path == "" {
			continue
		}
		text, err := os.ReadFile(file.path)
		if err != nil {
			return err
		}
		if err := file.take(text); err != nil {
			return fmt.Errorf("%s: %w", file.path, err)
		}
	}
	l, err := lab.Start(ctx, opts)
	if err != nil {
		return err
	}
	defer func() {
		if err := l.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "lab:", err)
		}
	}()
	if err := l.CreateNodes(ctx, pools); err != nil {
		return err
	}
	path := l.Kubeconfig()
	if *kubeconfig != "" {
		path = *kubeconfig
		if err := lab.WriteKubeconfig(path, l.Config()); err != nil {
			return err
		}
	}
	fmt.Printf("The control plane runs until Ctrl-C:\n  export KUBECONFIG=%s\n", path)
	<-ctx.Done()
	return nil
}
