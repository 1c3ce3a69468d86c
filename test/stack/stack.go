// Package stack runs Lockstep on a lab: a real control plane whose kube-scheduler
// has the configuration that is shipped, the shipped manifests applied, and the
// extender's replicas as processes of their own, under the rights of the shipped
// service account.
package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lockstep-scheduler/lockstep/test/lab"
)

// Options of a Stack.
type Options struct {
	// Lab is how the control plane is started; its SchedulerConfig is replaced if
	// there are replicas.
	Lab lab.Options
	// Nodes is a description of the nodes for lab.ParseNodes.
	Nodes string
	// Replicas of the extender; 0: a plain cluster, without Lockstep.
	Replicas int
	// RedisURL is the replicas' store; empty: embedded, for one replica.
	RedisURL string
	// ExtenderArgs are further flags of the replicas.
	ExtenderArgs []string
	// NoAdmission leaves the admission policy out: gang members are not gated.
	NoAdmission bool
	// Scheduler changes kube-scheduler's configuration further.
	Scheduler lab.SchedulerPatch
	// TLS serves the extender over TLS, and demands a client certificate of
	// kube-scheduler, with what deploy/make-certs.sh makes. For one replica.
	TLS bool
	// Race builds the extender with the race detector.
	Race bool
	// LogDir is where logs go; empty: the stack's own folder, removed by Stop.
	LogDir string
	// Progress receives a line for each step; nil: none.
	Progress io.Writer
}

// Stack is a running cluster with Lockstep.
type Stack struct {
	Lab      *lab.Lab
	Client   kubernetes.Interface
	Replicas []*Replica
	Proxy    *Proxy // of several replicas; nil for one

	opts    Options
	folder  string
	binary  string
	account *rest.Config
	address string // of a single replica
	http    *http.Client
}

// Start brings everything up and returns once every replica is ready and every
// node is.
func Start(ctx context.Context, o Options) (_ *Stack, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	s := &Stack{opts: o, http: http.DefaultClient}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.folder, err = os.MkdirTemp("", "lockstep-stack-"); err != nil {
		return nil, fmt.Errorf("making the stack's folder: %w", err)
	}
	if s.opts.LogDir == "" {
		s.opts.LogDir = s.folder
	}
	if err := s.configure(); err != nil {
		return nil, err
	}
	if s.opts.Lab.Progress == nil {
		s.opts.Lab.Progress = o.Progress
	}
	s.opts.Lab.LogDir = s.opts.LogDir
	s.say("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK")
	if s.Lab, err = lab.Start(ctx, s.opts.Lab); err != nil {
		return nil, err
	}
	if s.Client, err = kubernetes.NewForConfig(s.Lab.Config()); err != nil {
		return nil, fmt.Errorf("making a client of the lab: %w", err)
	}
	if err := s.createNodes(ctx); err != nil {
		return nil, err
	}
	if o.Replicas == 0 {
		return s, nil
	}
	return s, s.startLockstep(ctx)
}

func (s *Stack) say(format string, args ...any) {
	fmt.Fprintf(s.opts.Progress, format+"\n", args...)
}

// configure gives kube-scheduler the shipped configuration, pointed at the replica
// or, if there are several, at the proxy.
func (s *Stack) configure() error {
	if s.opts.Replicas == 0 {
		return nil
	}
	var err error
	url := ""
	if s.opts.Replicas == 1 {
		// A single replica is asked directly, on a port of its own.
		if s.address, err = freeAddress(); err != nil {
			return err
		}
		url = "http://" + s.address
		if s.opts.TLS {
			url = "https://" + s.address
			if err := s.makeCerts(); err != nil {
				return err
			}
		}
	} else {
		if s.Proxy, err = NewProxy(); err != nil {
			return err
		}
		url = s.Proxy.URL()
	}
	shipped, err := os.ReadFile(filepath.Join(Root(), "deploy", "scheduler", "config.yaml"))
	if err != nil {
		return fmt.Errorf("reading the shipped scheduler configuration: %w", err)
	}
	patch := s.opts.Scheduler
	patch.ExtenderURL = url
	if s.opts.TLS {
		patch.Extender = func(_ int, entry map[string]any) {
			entry["tlsConfig"] = map[string]any{"caFile": s.cert("ca.crt"), "certFile": s.cert("client.crt"), "keyFile": s.cert("client.key")}
		}
	}
	alone := false
	patch.LeaderElect = &alone
	s.opts.Lab.SchedulerConfig, err = lab.PatchSchedulerConfig(shipped, patch)
	return err
}

func (s *Stack) createNodes(ctx context.Context) error {
	pools, err := lab.ParseNodes([]byte(s.opts.Nodes))
	if err != nil {
		return err
	}
	s.say("creating the nodes")
	return s.Lab.CreateNodes(ctx, pools)
}

func (s *Stack) startLockstep(ctx context.Context) error {
	manifests := []string{"namespace.yaml", "rbac.yaml", "lockstep.scheduler_nodetopologies.yaml"}
	if !s.opts.NoAdmission {
		manifests = append(manifests, "admission-policy.yaml")
	}
	for _, name := range manifests {
		if err := Apply(ctx, s.Lab.Config(), filepath.Join(Root(), "deploy", "manifests", name)); err != nil {
			return err
		}
	}
	var err error
	if s.account, err = s.Lab.ServiceAccountConfig(ctx, "lockstep-system", "lockstep-extender"); err != nil {
		return err
	}
	s.say("building and starting the extender")
	if s.binary, err = buildExtender(ctx, s.folder, s.opts.Race); err != nil {
		return err
	}
	for range s.opts.Replicas {
		if _, err := s.AddReplica(ctx); err != nil {
			return err
		}
	}
	if s.opts.NoAdmission {
		return nil
	}
	return s.awaitAdmission(ctx)
}

// AddReplica starts one more replica and waits until it is ready.
func (s *Stack) AddReplica(ctx context.Context) (*Replica, error) {
	r, err := s.startReplica(len(s.Replicas))
	if err != nil {
		return nil, err
	}
	s.Replicas = append(s.Replicas, r)
	if err := r.awaitReady(ctx); err != nil {
		return nil, err
	}
	if s.Proxy != nil {
		s.Proxy.add(r.url)
	}
	return r, nil
}

// Stop ends everything and removes what was written. It may be called twice.
func (s *Stack) Stop() error {
	var errs []error
	if s.Proxy != nil {
		errs = append(errs, s.Proxy.close())
	}
	for _, r := range s.Replicas {
		errs = append(errs, r.Stop())
	}
	s.Replicas = nil
	if s.Lab != nil {
		errs = append(errs, s.Lab.Stop())
		s.Lab = nil
	}
	return errors.Join(append(errs, os.RemoveAll(s.folder))...)
}

// Root is the folder of the checkout.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// poll tries until it works or the time is up.
func poll(ctx context.Context, limit time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
