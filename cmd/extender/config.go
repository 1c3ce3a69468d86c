package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// config is what the flags say.
type config struct {
	kubeconfig     string
	qps            float64
	burst          int
	cluster        string
	redisURL       string
	listen         string
	certFile       string
	keyFile        string
	clientCAFile   string
	insecure       bool
	http2          bool
	levels         string
	gpu            string
	startTimeout   time.Duration
	barrierTimeout time.Duration
	healGrace      time.Duration
	pprof          bool
	logLevel       string

	parsedLevels []topology.Level
	parsedLog    slog.Level
}

// parse reads the command line. The error is flag.ErrHelp when help was asked for.
func parse(args []string, out io.Writer) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("lockstep-extender", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig `file`; empty: the pod's own service account")
	f.Float64Var(&c.qps, "kube-api-qps", 500, "calls a second to the API server")
	f.IntVar(&c.burst, "kube-api-burst", 1000, "calls to the API server in a burst")
	f.StringVar(&c.cluster, "cluster-name", "default", "`name` of this cluster's part of Redis; clusters that share a Redis need different ones")
	f.StringVar(&c.redisURL, "redis-url", "", "`URL` of Redis (redis:// or rediss://); empty: an embedded one, for a single replica")
	f.StringVar(&c.listen, "listen", "127.0.0.1:9443", "`address` to listen on")
	f.StringVar(&c.certFile, "tls-cert-file", "", "server certificate (PEM `file`), re-read when it changes")
	f.StringVar(&c.keyFile, "tls-key-file", "", "key of the server certificate (PEM `file`)")
	f.StringVar(&c.clientCAFile, "client-ca-file", "", "CA (PEM `file`) that must have signed the certificates of callers")
	f.BoolVar(&c.insecure, "insecure", false, "serve plain HTTP on an address other than loopback")
	f.BoolVar(&c.http2, "http2", false, "serve HTTP/2; off, kube-scheduler's calls spread over the replicas")
	f.StringVar(&c.levels, "levels", "", "topology `levels` from wide to narrow, as zone=label;rack=label|label; empty: the usual ones")
	f.StringVar(&c.gpu, "gpu-resource", v1alpha1.GPUResource, "extended `resource` that counts as a GPU")
	f.DurationVar(&c.startTimeout, "start-timeout", 5*time.Minute, "how long a gang may hold room it does not use yet, unless it says so itself")
	f.DurationVar(&c.barrierTimeout, "barrier-timeout", 50*time.Second, "longest a bind call waits for the rest of its gang; keep it below the extender's httpTimeout")
	f.DurationVar(&c.healGrace, "heal-grace", 5*time.Minute, "how long a running gang may be below its minimum before it is evicted as a whole")
	f.BoolVar(&c.pprof, "pprof", false, "serve /debug/pprof")
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
	host, _, err := net.SplitHostPort(c.listen)
	bad(err == nil, "--listen=%q: want host:port", c.listen)
	ip := net.ParseIP(host)
	loopback := host == "localhost" || (ip != nil && ip.IsLoopback())
	bad(err != nil || loopback || c.certFile != "" || c.insecure, "--listen=%s is not a loopback address: give --tls-cert-file and --tls-key-file (or --insecure)", c.listen)
	bad((c.certFile == "") == (c.keyFile == ""), "--tls-cert-file and --tls-key-file go together")
	bad(c.clientCAFile == "" || c.certFile != "", "--client-ca-file needs --tls-cert-file")
	bad(c.qps > 0 && c.burst > 0, "--kube-api-qps=%v and --kube-api-burst=%d must be positive", c.qps, c.burst)
	bad(c.cluster != "", "--cluster-name must not be empty")
	bad(c.gpu != "", "--gpu-resource must not be empty")
	bad(c.startTimeout >= time.Second, "--start-timeout=%s: want at least 1s", c.startTimeout)
	bad(c.barrierTimeout >= time.Second, "--barrier-timeout=%s: want at least 1s", c.barrierTimeout)
	bad(c.healGrace >= time.Second, "--heal-grace=%s: want at least 1s", c.healGrace)
	c.parsedLevels = topology.DefaultLevels()
	if c.levels != "" {
		c.parsedLevels, err = topology.ParseLevels(c.levels)
		bad(err == nil, "--levels: %v", err)
	}
	bad(c.parsedLog.UnmarshalText([]byte(c.logLevel)) == nil, "--log-level=%q: want debug, info, warn or error", c.logLevel)
	return errors.Join(errs...)
}
