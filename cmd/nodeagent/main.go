// Command nodeagent reports a node's GPUs, how they are connected and who uses them.
// docs/nodeagent.md describes it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/nodeagent"
)

func main() {
	c, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: c.parsedLog}))
	if err := run(ctx, c, log); err != nil {
		log.Error("ended", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c *config, log *slog.Logger) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	o := nodeagent.Options{
		Interval: c.interval, Heartbeat: c.heartbeat, Metrics: nodeagent.NewMetrics(c.node, c.nics(), registry), Log: log,
	}
	if c.once {
		pods := func() []*corev1.Pod { return nil }
		end, err := c.parts(&o, pods)
		if err != nil {
			return err
		}
		defer end()
		return printOnce(ctx, c, nodeagent.New(o))
	}
	cfg, err := connect(c)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client of the API server: %w", err)
	}
	o.Publisher = nodeagent.NewPublisher(client, c.node)
	var pods func() []*corev1.Pod
	if c.simulate != "" {
		if pods, err = follow(ctx, cfg, c.node); err != nil {
			return err
		}
	}
	end, err := c.parts(&o, pods)
	if err != nil {
		return err
	}
	defer end()
	go serve(ctx, c.listen, registry, log)
	nodeagent.New(o).Run(ctx)
	return nil
}

// nics reads the node's network devices; a simulated node has none.
func (c *config) nics() func() []nodeagent.NIC {
	if c.simulate != "" {
		return nil
	}
	return func() []nodeagent.NIC { return nodeagent.ReadNICs(c.sysfs) }
}

// parts makes what the agent reads: a real node, or a simulated one.
func (c *config) parts(o *nodeagent.Options, pods func() []*corev1.Pod) (end func(), err error) {
	if c.simulate != "" {
		m, err := nodeagent.ReadMachine(c.simulate)
		if err != nil {
			return nil, err
		}
		s, err := nodeagent.Simulate(c.node, m, corev1.ResourceName(c.gpu), pods)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.simulate, err)
		}
		o.Driver, o.Allocations = s, s
		return func() {}, nil
	}
	driver := nodeagent.NewNVML(c.library, c.sysfs)
	kubelet, err := nodeagent.NewKubelet(c.socket, c.gpu)
	if err != nil {
		return nil, err
	}
	o.Driver, o.Allocations = driver, kubelet
	if c.kubelet != "" {
		o.NUMAPolicy = func() string { return nodeagent.NUMAPolicy(c.kubelet) }
	}
	return func() {
		_ = kubelet.Close()
		driver.Close()
	}, nil
}

// printOnce prints the report as YAML, with the rings of the free GPUs as a comment.
func printOnce(ctx context.Context, c *config, a *nodeagent.Agent) error {
	status, rings := a.Once(ctx)
	text, err := yaml.Marshal(v1alpha1.NodeTopology{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeTopology"},
		ObjectMeta: metav1.ObjectMeta{Name: c.node},
		Status:     status,
	})
	if err != nil {
		return err
	}
	if rings != "" {
		text = append(text, "# The best ring of free GPUs, and how many sets of them have it:\n"...)
		for line := range strings.Lines(rings) {
			text = append(text, "# "+line...)
		}
	}
	_, err = os.Stdout.Write(text)
	return err
}

func connect(c *config) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if c.kubeconfig == "" {
		cfg, err = rest.InClusterConfig()
	} else {
		cfg, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("reading how to reach the API server (--kubeconfig): %w", err)
	}
	cfg.UserAgent = "lockstep-nodeagent"
	return cfg, nil
}

// follow watches the pods that are bound to the node, which has no kubelet to ask.
func follow(ctx context.Context, cfg *rest.Config, node string) (func() []*corev1.Pod, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client of the API server: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}))
	lister := factory.Core().V1().Pods().Lister()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return func() []*corev1.Pod {
		list, err := lister.List(labels.Everything())
		if err != nil {
			return nil // of a cache in memory, which has no errors
		}
		return list
	}, nil
}

func serve(ctx context.Context, listen string, registry *prometheus.Registry, log *slog.Logger) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	server := &http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		log.Error("serving metrics failed", "address", listen, "error", err)
	}
}
