package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// Follow keeps the cluster current from the API server until ctx ends. The
// cluster is the reflectors' own store: no second copy of the objects is kept. The
// nodes' reports are followed once their type is known to the API server.
func (c *Cluster) Follow(ctx context.Context, client kubernetes.Interface, reports dynamic.Interface, log *slog.Logger) *Following {
	f := &Following{}
	core := client.CoreV1()
	nodes := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Nodes().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return core.Nodes().Watch(ctx, o)
		},
	}, client), &corev1.Node{}, nodeStore{c, &f.nodes}, cache.ReflectorOptions{Name: "nodes"})
	pods := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Pods(metav1.NamespaceAll).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return core.Pods(metav1.NamespaceAll).Watch(ctx, o)
		},
	}, client), &corev1.Pod{}, podStore{c, &f.pods}, cache.ReflectorOptions{Name: "pods"})
	go nodes.RunWithContext(ctx)
	go pods.RunWithContext(ctx)
	go c.followReports(ctx, client.Discovery(), reports.Resource(v1alpha1.NodeTopologies), &f.topologies, log)
	return f
}

// Following tells how far the reflectors have come.
type Following struct{ nodes, pods, topologies atomic.Bool }

// Synced is true once nodes, pods and what there is of the nodes' reports have been
// listed in full.
func (f *Following) Synced() bool { return f.nodes.Load() && f.pods.Load() && f.topologies.Load() }

// Await waits until everything has been listed; it gives false if ctx ends first.
func (f *Following) Await(ctx context.Context) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !f.Synced() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// nodeStore and podStore are cache.ReflectorStores on the cluster.
type nodeStore struct {
	c      *Cluster
	synced *atomic.Bool
}

func (s nodeStore) Add(obj any) error { return s.Update(obj) }

func (s nodeStore) Update(obj any) error {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("following nodes: got a %T", obj)
	}
	s.c.SetNode(n)
	return nil
}

func (s nodeStore) Delete(obj any) error {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("following nodes: got a %T", obj)
	}
	s.c.DeleteNode(n.Name)
	return nil
}

func (s nodeStore) Replace(list []any, _ string) error {
	keep := map[string]bool{}
	for _, obj := range list {
		if err := s.Update(obj); err != nil {
			return err
		}
		keep[obj.(*corev1.Node).Name] = true
	}
	for _, name := range s.c.nodeNames() {
		if !keep[name] {
			s.c.DeleteNode(name)
		}
	}
	s.synced.Store(true)
	s.c.notify()
	return nil
}

func (nodeStore) Resync() error { return nil }

type podStore struct {
	c      *Cluster
	synced *atomic.Bool
}

func (s podStore) Add(obj any) error { return s.Update(obj) }

func (s podStore) Update(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("following pods: got a %T", obj)
	}
	s.c.SetPod(p)
	return nil
}

func (s podStore) Delete(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("following pods: got a %T", obj)
	}
	s.c.DeletePod(p.UID, p.ResourceVersion)
	return nil
}

func (s podStore) Replace(list []any, resourceVersion string) error {
	keep := map[types.UID]bool{}
	for _, obj := range list {
		if err := s.Update(obj); err != nil {
			return err
		}
		keep[obj.(*corev1.Pod).UID] = true
	}
	for _, uid := range s.c.podUIDs() {
		if !keep[uid] {
			s.c.DeletePod(uid, resourceVersion)
		}
	}
	s.c.see(resourceVersion)
	s.synced.Store(true)
	s.c.notify()
	return nil
}

func (podStore) Resync() error { return nil }

// Bookmark notes that the watch has come this far without a change to a pod.
func (s podStore) Bookmark(resourceVersion string) error {
	s.c.see(resourceVersion)
	return nil
}
