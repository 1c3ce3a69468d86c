package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
)

const (
	startWithin = 2 * time.Minute
	stopGrace   = 10 * time.Second
)

// Lab is a running control plane.
type Lab struct {
	opts        Options
	folder      *folder
	ports       *ports
	port        map[string]int
	spawner     *spawner
	credentials *credentials
	client      kubernetes.Interface
	probes      *http.Client // trusts the lab's CA and no other

	mu        sync.Mutex
	processes map[Component]*process
}

// Start brings up a control plane and returns once all its parts answer. If it
// fails, nothing is left behind.
func Start(ctx context.Context, opts Options) (_ *Lab, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("the lab did not start within %s", startWithin))
	defer cancel()
	l := &Lab{opts: opts.withDefaults(), ports: &ports{}, port: map[string]int{}, processes: map[Component]*process{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Stop())
		}
	}()
	if l.opts.Binaries == nil {
		// A first build takes longer than a start may.
		if l.opts.Binaries, err = Binaries(context.WithoutCancel(ctx), l.opts.Progress); err != nil {
			return nil, err
		}
	}
	if _, err := Sweep(); err != nil {
		return nil, err
	}
	if err := l.prepare(); err != nil {
		return nil, err
	}
	for _, start := range []func(context.Context) error{l.startEtcd, l.startAPIServer, l.restrainKWOK} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	// The rest needs the API server only, so it starts together.
	rest := []func(context.Context) error{l.startControllerManager, l.startKWOK}
	if !l.opts.NoScheduler {
		rest = append(rest, func(ctx context.Context) error { return l.StartScheduler(ctx, l.opts.SchedulerConfig) })
	}
	errs := make([]error, len(rest))
	var wg sync.WaitGroup
	for i, start := range rest {
		wg.Go(func() { errs[i] = start(ctx) })
	}
	wg.Wait()
	return l, errors.Join(errs...)
}

// prepare makes what the processes need: folder, ports, certificates.
func (l *Lab) prepare() error {
	var err error
	if l.folder, err = newFolder(); err != nil {
		return err
	}
	if l.opts.LogDir == "" {
		l.opts.LogDir = l.folder.path
	}
	if err := os.MkdirAll(l.opts.LogDir, 0o755); err != nil {
		return fmt.Errorf("making the folder for the lab's logs: %w", err)
	}
	for _, name := range []string{"etcd", "etcd-peer", "apiserver", "controller-manager", "scheduler", "kwok"} {
		if l.port[name], err = l.ports.next(); err != nil {
			return err
		}
	}
	if l.credentials, err = newCredentials(l.folder.path, "https://"+loopback(l.port["apiserver"])); err != nil {
		return err
	}
	if l.client, err = kubernetes.NewForConfig(l.Config()); err != nil {
		return fmt.Errorf("making the lab's client: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(l.credentials.admin.CAData)
	l.probes = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	l.spawner = newSpawner()
	return nil
}

// run starts a component and waits until the probe succeeds.
func (l *Lab) run(ctx context.Context, component Component, args []string, probe func(context.Context) error) error {
	l.mu.Lock()
	if p := l.processes[component]; p != nil && p.running() {
		l.mu.Unlock()
		return fmt.Errorf("starting %s: it runs already", component)
	}
	args = append(args, l.opts.ExtraArgs[component]...)
	p, err := l.spawner.spawn(component, l.opts.Binaries[component], args, l.folder.path, filepath.Join(l.opts.LogDir, string(component)+".log"))
	if err == nil {
		l.processes[component] = p
	}
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return p.await(ctx, probe)
}

// healthy probes a URL that answers 200 once the component serves.
func (l *Lab) healthy(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := l.probes.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answered %s", url, response.Status)
		}
		return nil
	}
}

// Stop ends every component and removes the lab's folder. It may be called again.
func (l *Lab) Stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	// In reverse: clients before the server. There is nothing to save, and etcd's
	// and the API server's orderly ends take seconds.
	for _, component := range slices.Backward(Components()) {
		if p := l.processes[component]; p != nil {
			errs = append(errs, p.kill())
			delete(l.processes, component)
		}
	}
	if l.spawner != nil {
		l.spawner.close()
		l.spawner = nil
	}
	if l.probes != nil {
		l.probes.CloseIdleConnections()
	}
	errs = append(errs, l.ports.close())
	if l.folder != nil {
		errs = append(errs, l.folder.remove())
		l.folder = nil
	}
	return errors.Join(errs...)
}

// process finds a component that runs.
func (l *Lab) process(component Component) (*process, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.processes[component]; p != nil && p.running() {
		return p, nil
	}
	return nil, fmt.Errorf("%s does not run", component)
}

// Signal sends a signal to a component: SIGSTOP and SIGCONT to make it hang for a
// while, SIGKILL to crash it.
func (l *Lab) Signal(component Component, sig os.Signal) error {
	p, err := l.process(component)
	if err != nil {
		return err
	}
	return p.signal(sig)
}

// CPUSeconds is the processor time that a component has used since it started.
func (l *Lab) CPUSeconds(component Component) (float64, error) {
	p, err := l.process(component)
	if err != nil {
		return 0, err
	}
	return CPUSeconds(p.cmd.Process.Pid)
}

// Log is the path of a component's log.
func (l *Lab) Log(component Component) string {
	return filepath.Join(l.opts.LogDir, string(component)+".log")
}

// StopScheduler ends kube-scheduler as a restart does, with SIGTERM.
func (l *Lab) StopScheduler() error {
	p, err := l.process(Scheduler)
	if err != nil {
		return err
	}
	return p.terminate(stopGrace)
}
