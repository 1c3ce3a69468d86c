package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// lookAgain is how often it is looked whether the API server knows NodeTopology.
const lookAgain = 30 * time.Second

// followReports follows the nodes' reports. A cluster may have none: then synced is
// set at once, and the type is waited for.
func (c *Cluster) followReports(ctx context.Context, disco discovery.DiscoveryInterface, client dynamic.ResourceInterface, synced *atomic.Bool, log *slog.Logger) {
	for {
		ok, err := served(disco)
		if ok {
			break
		}
		again := time.Second
		if err == nil {
			again = lookAgain
			if !synced.Swap(true) {
				log.Info("the API server does not know NodeTopology: nothing is known of the links between GPUs")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
	cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, reportStore{c, synced, log}, cache.ReflectorOptions{
		Name: "nodetopologies", TypeDescription: "NodeTopology",
	}).RunWithContext(ctx)
}

// served tells whether the API server knows the type.
func served(disco discovery.DiscoveryInterface) (bool, error) {
	list, err := disco.ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && len(list.APIResources) > 0, err
}

// reportStore is a cache.ReflectorStore on the cluster. A report that cannot be
// understood is logged, and harms nobody else.
type reportStore struct {
	c      *Cluster
	synced *atomic.Bool
	log    *slog.Logger
}

func (s reportStore) Add(obj any) error { return s.Update(obj) }

func (s reportStore) Update(obj any) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("following the nodes' reports: got a %T", obj)
	}
	t := &v1alpha1.NodeTopology{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, t)
	if err != nil {
		s.c.DeleteNodeTopology(u.GetName())
	} else {
		err = s.c.SetNodeTopology(t, time.Now())
	}
	if err != nil {
		s.log.Warn("a node's report is left out", "node", u.GetName(), "error", err)
	}
	return nil
}

func (s reportStore) Delete(obj any) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("following the nodes' reports: got a %T", obj)
	}
	s.c.DeleteNodeTopology(u.GetName())
	return nil
}

func (s reportStore) Replace(list []any, _ string) error {
	keep := map[string]bool{}
	for _, obj := range list {
		if err := s.Update(obj); err != nil {
			return err
		}
		keep[obj.(*unstructured.Unstructured).GetName()] = true
	}
	for _, name := range s.c.reported() {
		if !keep[name] {
			s.c.DeleteNodeTopology(name)
		}
	}
	s.synced.Store(true)
	s.c.notify()
	return nil
}

func (reportStore) Resync() error { return nil }
