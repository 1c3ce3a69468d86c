// Command extender is Lockstep's scheduler extender: it plans gangs, reserves their
// room, and answers kube-scheduler. docs/extender.md describes it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"

	"github.com/lockstep-scheduler/lockstep/extender"
	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/extender/controller"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
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

// drainSlack is what a bind takes beyond its wait at the barrier.
const drainSlack = 10 * time.Second

func run(ctx context.Context, c *config, log *slog.Logger) error {
	cfg, err := connect(c)
	if err != nil {
		return err
	}
	// Protobuf costs a fraction of JSON; patches stay JSON, and so do types of ours.
	compact := rest.CopyConfig(cfg)
	compact.AcceptContentTypes, compact.ContentType = "application/vnd.kubernetes.protobuf,application/json", "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(compact)
	if err != nil {
		return fmt.Errorf("making a client of the API server: %w", err)
	}
	reports, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client of the API server for reports of nodes: %w", err)
	}
	redis, err := openRedis(c, log)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	state := cluster.New(cluster.Options{GPU: c.gpu, Levels: c.parsedLevels})
	store := reservation.New(reservation.Options{Cluster: c.cluster, Client: redis, Registerer: registry, Log: log})
	mirror := reservation.NewMirror(store)
	writer := controller.NewWriter(client, registry)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	loop := controller.New(controller.Options{
		Identity: identity(), StartTimeout: c.startTimeout, HealGrace: c.healGrace, Log: log,
	}, state, store, mirror, writer, broadcaster.NewRecorder(scheme.Scheme, "lockstep"), registry)

	// The parts end after the server, which needs them for the calls under way.
	background, end := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer parts.Wait()
	defer end()
	following := state.Follow(background, client, reports, log)
	if err := broadcaster.StartRecordingToSinkWithContext(background); err != nil {
		return fmt.Errorf("starting to record events: %w", err)
	}
	defer broadcaster.Shutdown()
	parts.Go(func() { mirror.Run(background) })
	parts.Go(func() {
		if following.Await(ctx) {
			loop.Run(ctx)
		}
	})

	desk := &controller.Desk{Cluster: state, Mirror: mirror, Barrier: reservation.NewBarrier(store, mirror), Writer: writer}
	var ending atomic.Bool
	handler := extender.New(extender.Options{
		Seats: desk, Binder: desk, Victims: desk,
		Ready: func() error { return ready(following, mirror, &ending) },
		// The barrier's own limit comes first, so that a caller learns why.
		BindTimeout: c.barrierTimeout, ClientCertificates: c.clientCAFile != "", Profiling: c.pprof,
		Registerer: registry, Gatherer: registry, Log: log,
	})
	return extender.Serve(ctx, extender.ServerOptions{
		Listen: c.listen, CertFile: c.certFile, KeyFile: c.keyFile, ClientCAFile: c.clientCAFile, HTTP2: c.http2,
		Drain: c.barrierTimeout + drainSlack,
	}, handler, func(at net.Addr) {
		log.Info("serving", "address", at.String(), "tls", c.certFile != "")
	}, func() {
		log.Info("ending: calls under way are answered first")
		ending.Store(true)
	})
}

func ready(f *cluster.Following, m *reservation.Mirror, ending *atomic.Bool) error {
	switch {
	case ending.Load():
		return errors.New("ending")
	case !f.Synced():
		return errors.New("the nodes and pods have not been listed yet")
	case !m.Up():
		return errors.New("the reservation store cannot be reached")
	}
	return nil
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
	cfg.QPS, cfg.Burst = float32(c.qps), c.burst
	cfg.UserAgent = "lockstep-extender"
	return cfg, nil
}

func openRedis(c *config, log *slog.Logger) (redis.UniversalClient, error) {
	if c.redisURL != "" {
		return reservation.Connect(c.redisURL)
	}
	log.Info("no --redis-url: reservations are kept in this process, so there must be one replica only")
	client, _, err := reservation.Embedded()
	return client, err
}

func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "_" + string(uuid.NewUUID())
}
