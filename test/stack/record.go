package stack

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/resource"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// Recorder follows every pod event of a run, in the order of the API server, and
// checks after each that nothing is used twice, and on request that every gang
// has started whole or not at all. It knows nothing of Lockstep's own code: what
// it checks is what a user would see.
type Recorder struct {
	client kubernetes.Interface
	cancel context.CancelFunc
	done   chan struct{}

	mu         sync.Mutex
	pods       map[types.UID]*corev1.Pod
	capacity   map[string]corev1.ResourceList
	half       map[string]time.Time // gangs that have some but too few bound, since when
	changed    chan struct{}        // closed and replaced at each event
	last       time.Time
	violations []string
	bound      map[types.UID]time.Time
}

// HalfFor is how long a gang may have some but fewer bound members than its
// minimum. A committed gang's binds take a moment each, on a busy machine and for
// a thousand members half a minute; Settled catches what stays half started.
const HalfFor = 2 * time.Minute

// Record starts a recorder; Stop ends it.
func Record(ctx context.Context, client kubernetes.Interface) (*Recorder, error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &Recorder{
		client: client, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		pods: map[types.UID]*corev1.Pod{}, capacity: map[string]corev1.ResourceList{},
		half: map[string]time.Time{}, bound: map[types.UID]time.Time{},
	}
	list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("listing pods to record: %w", err)
	}
	for i := range list.Items {
		r.see(&list.Items[i], false)
	}
	go r.follow(ctx, list.ResourceVersion)
	return r, nil
}

// Stop ends the recording and returns what was violated.
func (r *Recorder) Stop() []string {
	r.cancel()
	<-r.done
	return r.Violations()
}

// Violations so far.
func (r *Recorder) Violations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.violations)
}

func (r *Recorder) follow(ctx context.Context, version string) {
	defer close(r.done)
	for ctx.Err() == nil {
		w, err := r.client.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if err != nil {
			if ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
			}
			continue
		}
		for event := range w.ResultChan() {
			switch o := event.Object.(type) {
			case *corev1.Pod:
				version = o.ResourceVersion
				if event.Type != watch.Bookmark {
					r.see(o, event.Type == watch.Deleted)
				}
			case *metav1.Status:
				if ctx.Err() != nil {
					return
				}
				r.violate("the recorder lost its watch, and may have missed something: %s", o.Message)
				w.Stop()
				return
			}
		}
	}
}

func (r *Recorder) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
}

// see takes in one event and checks what must hold after it.
func (r *Recorder) see(pod *corev1.Pod, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Now()
	close(r.changed)
	r.changed = make(chan struct{})
	old := r.pods[pod.UID]
	if deleted {
		delete(r.pods, pod.UID)
	} else {
		r.pods[pod.UID] = pod
	}
	if pod.Spec.NodeName != "" && (old == nil || old.Spec.NodeName == "") {
		r.bound[pod.UID] = r.last
		r.checkNode(pod.Spec.NodeName)
	}
	r.checkHalf(gangOf(pod))
}

// checkNode holds the requests on a node against what it offers.
func (r *Recorder) checkNode(name string) {
	capacity, ok := r.capacity[name]
	if !ok {
		node, err := r.client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return // the node is gone: there is nothing to exceed
		}
		capacity = node.Status.Allocatable
		r.capacity[name] = capacity
	}
	used := map[corev1.ResourceName]int64{}
	for _, p := range r.pods {
		if p.Spec.NodeName != name || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		used[corev1.ResourcePods]++ // pieces, not thousandths
		for resource, q := range resource.PodRequests(p, resource.PodResourcesOptions{}) {
			used[resource] += q.MilliValue()
		}
	}
	for resource, n := range used {
		have, ok := capacity[resource]
		limit := have.MilliValue()
		if resource == corev1.ResourcePods {
			limit = have.Value()
		}
		if ok && n > limit {
			r.violations = append(r.violations, fmt.Sprintf("node %s: bound pods take %d of %d (thousandths of) %s", name, n, limit, resource))
		}
	}
}

// Forget makes the recorder read a node's capacity again, after a test changed it.
func (r *Recorder) Forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.capacity, node)
}

func gangOf(pod *corev1.Pod) string {
	for _, from := range []map[string]string{pod.Annotations, pod.Labels} {
		if name := from[v1alpha1.Gang]; name != "" {
			return pod.Namespace + "/" + name
		}
	}
	return ""
}

func minimumOf(pod *corev1.Pod) int {
	for _, from := range []map[string]string{pod.Annotations, pod.Labels} {
		if n, err := strconv.Atoi(from[v1alpha1.MinMember]); err == nil {
			return n
		}
	}
	return 0
}

// Gang is what is known of a gang's pods.
type Gang struct {
	Name                     string
	Pods, Bound, Done, Min   int
	FirstCreated, LastBound  time.Time
	Nodes                    []string // where the bound ones are, one entry each
	FirstBound               time.Time
	Messages                 []string // of the pods' conditions PodScheduled, distinct
	Ungated, Waiting, Ending int
}

// Gangs gives every gang, by name.
func (r *Recorder) Gangs() map[string]Gang {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]Gang{}
	for _, pod := range r.pods {
		if name := gangOf(pod); name != "" {
			out[name] = r.count(name, out[name], pod)
		}
	}
	for name, g := range out {
		slices.Sort(g.Nodes)
		slices.Sort(g.Messages)
		g.Messages = slices.Compact(g.Messages)
		out[name] = g
	}
	return out
}

func (r *Recorder) count(name string, g Gang, pod *corev1.Pod) Gang {
	g.Name = name
	g.Min = max(g.Min, minimumOf(pod))
	if created := pod.CreationTimestamp.Time; g.FirstCreated.IsZero() || created.Before(g.FirstCreated) {
		g.FirstCreated = created
	}
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		g.Done++
		return g
	case corev1.PodFailed:
		return g
	}
	g.Pods++
	if len(pod.Spec.SchedulingGates) == 0 {
		g.Ungated++
	}
	if pod.DeletionTimestamp != nil {
		g.Ending++
	}
	if pod.Spec.NodeName == "" {
		g.Waiting++
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Message != "" {
				g.Messages = append(g.Messages, c.Message)
			}
		}
		return g
	}
	g.Bound++
	g.Nodes = append(g.Nodes, pod.Spec.NodeName)
	at := r.bound[pod.UID]
	if g.FirstBound.IsZero() || at.Before(g.FirstBound) {
		g.FirstBound = at
	}
	if at.After(g.LastBound) {
		g.LastBound = at
	}
	return g
}

// Half tells whether the gang runs with some but too few of its members. Done and
// ending members count: what has started has started.
func (g Gang) Half() bool { return g.Bound > 0 && g.Bound+g.Done < g.Min }

// checkHalf notes how long a gang has been half started.
func (r *Recorder) checkHalf(name string) {
	if name == "" {
		return
	}
	g := Gang{}
	for _, pod := range r.pods {
		if gangOf(pod) == name {
			g = r.count(name, g, pod)
		}
	}
	since, was := r.half[name]
	switch {
	case !g.Half():
		if was && time.Since(since) > HalfFor {
			r.violations = append(r.violations, fmt.Sprintf("gang %s was half started for %s", name, time.Since(since).Round(time.Second)))
		}
		delete(r.half, name)
	case !was:
		r.half[name] = time.Now()
	}
}

// Settled waits until no pod has changed for the quiet time, and returns the
// gangs that are half started then, beside all violations so far.
func (r *Recorder) Settled(ctx context.Context, quiet time.Duration) error {
	for {
		r.mu.Lock()
		changed, idle := r.changed, time.Since(r.last)
		r.mu.Unlock()
		if idle >= quiet {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the pods to settle: %w", ctx.Err())
		case <-changed:
		case <-time.After(quiet - idle):
		}
	}
	bad := r.Violations()
	gangs := r.Gangs()
	for _, name := range slices.Sorted(maps.Keys(gangs)) {
		if g := gangs[name]; g.Half() {
			bad = append(bad, fmt.Sprintf("gang %s is half started: %d bound and %d done of at least %d", name, g.Bound, g.Done, g.Min))
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("invariants violated:\n%s", strings.Join(bad, "\n"))
	}
	return nil
}

// Await waits until the condition holds for the gangs; what it says while it does
// not is part of the error.
func (r *Recorder) Await(ctx context.Context, limit time.Duration, condition func(map[string]Gang) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		err := condition(r.Gangs())
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, err)
		case <-changed:
		}
	}
}
