package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// config is what the flags say.
type config struct {
	node       string
	kubeconfig string
	socket     string
	library    string
	sysfs      string
	kubelet    string
	simulate   string
	gpu        string
	once       bool
	interval   time.Duration
	heartbeat  time.Duration
	listen     string
	logLevel   string

	parsedLog slog.Level
}

// parse reads the command line. The error is flag.ErrHelp when help was asked for.
func parse(args []string, out io.Writer) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("lockstep-nodeagent", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&c.node, "node-name", os.Getenv("NODE_NAME"), "`name` of this node; by default what NODE_NAME says")
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig `file`; empty: the pod's own service account")
	f.StringVar(&c.socket, "pod-resources-socket", "/var/lib/kubelet/pod-resources/kubelet.sock", "`socket` of the kubelet's pod-resources API")
	f.StringVar(&c.library, "nvml-library", "", "libnvidia-ml `file`; empty: the one that the system finds")
	f.StringVar(&c.sysfs, "sysfs", "/sys", "`folder` where sysfs is")
	f.StringVar(&c.kubelet, "kubelet-config", "", "kubelet's configuration `file`, to know its topology manager policy")
	f.StringVar(&c.simulate, "simulate", "", "report this machine instead: a `file` with a description, or what nvidia-smi topo -m printed")
	f.StringVar(&c.gpu, "gpu-resource", v1alpha1.GPUResource, "extended `resource` that counts as a GPU")
	f.BoolVar(&c.once, "once", false, "print one report and end, without a cluster")
	f.DurationVar(&c.interval, "interval", 5*time.Second, "time between two looks at the GPUs and their users")
	f.DurationVar(&c.heartbeat, "heartbeat", time.Minute, "how often a report that has not changed is written again")
	f.StringVar(&c.listen, "listen", "127.0.0.1:9465", "`address` of /metrics and /healthz")
	f.StringVar(&c.logLevel, "log-level", "info", "debug, info, warn or error")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return c, c.validate()
}

// validate checks all of it at once, so that an operator mends everything in one go.
func (c *config) validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.node != "" || c.once, "--node-name (or NODE_NAME) must not be empty")
	bad(c.gpu != "" && strings.Contains(c.gpu, "/"), "--gpu-resource=%q: want a name like %s", c.gpu, v1alpha1.GPUResource)
	bad(c.interval >= 100*time.Millisecond, "--interval=%s: want at least 100ms", c.interval)
	bad(c.heartbeat >= time.Second && c.heartbeat >= c.interval, "--heartbeat=%s: want at least 1s, and no less than --interval", c.heartbeat)
	_, _, err := net.SplitHostPort(c.listen)
	bad(err == nil, "--listen=%q: want host:port", c.listen)
	bad(c.parsedLog.UnmarshalText([]byte(c.logLevel)) == nil, "--log-level=%q: want debug, info, warn or error", c.logLevel)
	return errors.Join(errs...)
}
