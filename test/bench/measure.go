package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lockstep-scheduler/lockstep/test/lab"
	"github.com/lockstep-scheduler/lockstep/test/stack"
)

// result of one run.
type result struct {
	podsPerSecond float64
	p50, p99      float64 // seconds from a gang's first creation to its last bind
	cpuPerPod     float64 // seconds of kube-scheduler's processor time
	namesPerCall  float64 // of Filter; 0 without an extender
	creating      float64 // seconds that creating the pods took
}

func (r result) String() string {
	return fmt.Sprintf("%6.1f pods/s  gang p50 %6.2fs p99 %6.2fs  scheduler %5.2f ms/pod  %.2f names per Filter  creating %.2fs",
		r.podsPerSecond, r.p50, r.p99, r.cpuPerPod*1000, r.namesPerCall, r.creating)
}

const (
	creators  = 16
	runWithin = 3 * time.Minute
)

// timing collects when the pods of each gang were created and bound.
type timing struct {
	mu      sync.Mutex
	created map[string]time.Time // first, by gang
	bound   map[string]time.Time // last, by gang
	n       int
	done    chan struct{}
}

// measure runs one scenario in a namespace of its own and cleans up.
func measure(ctx context.Context, s *stack.Stack, a arm, sc scenario, namespace string) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, runWithin)
	defer cancel()
	owner, err := prepare(ctx, s, a, sc, namespace)
	if err != nil {
		return result{}, err
	}
	t := &timing{created: map[string]time.Time{}, bound: map[string]time.Time{}, done: make(chan struct{})}
	if err := t.follow(ctx, s, namespace, sc.gangs*sc.size); err != nil {
		return result{}, err
	}
	cpu, err := s.Lab.CPUSeconds(lab.Scheduler)
	if err != nil {
		return result{}, err
	}
	names, calls, err := filterNames(ctx, s)
	if err != nil {
		return result{}, err
	}
	started := time.Now()
	if err := t.create(ctx, s, a, sc, namespace, owner); err != nil {
		return result{}, err
	}
	created := time.Since(started)
	select {
	case <-t.done:
	case <-ctx.Done():
		t.mu.Lock()
		defer t.mu.Unlock()
		return result{}, fmt.Errorf("%d of %d pods bound within %s", t.n, sc.gangs*sc.size, runWithin)
	}
	r := t.result(started, sc)
	r.creating = created.Seconds()
	after, err := s.Lab.CPUSeconds(lab.Scheduler)
	if err != nil {
		return result{}, err
	}
	r.cpuPerPod = (after - cpu) / float64(sc.gangs*sc.size)
	moreNames, moreCalls, err := filterNames(ctx, s)
	if err != nil {
		return result{}, err
	}
	if moreCalls > calls {
		r.namesPerCall = (moreNames - names) / (moreCalls - calls)
	}
	return r, clean(ctx, s, namespace)
}

// prepare makes the namespace, the gangs' objects where the arm has some, and an
// owner for pods that have a controller.
func prepare(ctx context.Context, s *stack.Stack, a arm, sc scenario, namespace string) (*metav1.OwnerReference, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := s.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	owner, err := s.Client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	for g := 0; a.native && g < sc.gangs; g++ {
		group := &schedulingv1beta1.PodGroup{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: gangName(g)},
			Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
				Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(sc.size)},
			}},
		}
		if _, err := s.Client.SchedulingV1beta1().PodGroups(namespace).Create(ctx, group, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	if !a.owned {
		return nil, nil
	}
	yes := true
	return &metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: &yes}, nil
}

func gangName(g int) string { return fmt.Sprintf("gang-%d", g) }

const gangLabel = "bench-gang"

func (t *timing) follow(ctx context.Context, s *stack.Stack, namespace string, total int) error {
	list, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	version := list.ResourceVersion
	seen := map[string]bool{}
	go func() {
		for ctx.Err() == nil && len(seen) < total {
			w, err := s.Client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
			if err != nil {
				continue
			}
			// The API server ends watches of its own accord.
			for e := range w.ResultChan() {
				p, ok := e.Object.(*corev1.Pod)
				if !ok {
					continue
				}
				version = p.ResourceVersion
				if p.Spec.NodeName != "" && !seen[p.Name] && e.Type != watch.Deleted {
					seen[p.Name] = true
					t.note(p.Labels[gangLabel], len(seen) == total)
				}
			}
		}
	}()
	return nil
}

func (t *timing) note(gang string, last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bound[gang] = time.Now()
	t.n++
	if last {
		close(t.done)
	}
}

func (t *timing) create(ctx context.Context, s *stack.Stack, a arm, sc scenario, namespace string, owner *metav1.OwnerReference) error {
	next := make(chan *corev1.Pod)
	go func() {
		defer close(next)
		for g := range sc.gangs {
			name := gangName(g)
			w := stack.Workload{Namespace: namespace, Name: name, Pods: sc.size, GPUs: sc.gpus, Labels: map[string]string{gangLabel: name}}
			if a.gangs {
				w.Gang = name
			}
			for i := range sc.size {
				p := w.Pod(i)
				if owner != nil {
					p.OwnerReferences = []metav1.OwnerReference{*owner}
				}
				if a.native {
					p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
				}
				next <- p
			}
		}
	}()
	var first error
	var wg sync.WaitGroup
	for range creators {
		wg.Go(func() {
			for p := range next {
				t.mu.Lock()
				if gang := p.Labels[gangLabel]; t.created[gang].IsZero() {
					t.created[gang] = time.Now()
				}
				t.mu.Unlock()
				if _, err := s.Client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
					t.mu.Lock()
					first = cmp.Or[error](first, err)
					t.mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return first
}

func (t *timing) result(started time.Time, sc scenario) result {
	t.mu.Lock()
	defer t.mu.Unlock()
	var last time.Time
	var took []float64
	for gang, at := range t.bound {
		if at.After(last) {
			last = at
		}
		took = append(took, at.Sub(t.created[gang]).Seconds())
	}
	slices.Sort(took)
	return result{
		podsPerSecond: float64(sc.gangs*sc.size) / last.Sub(started).Seconds(),
		p50:           took[len(took)/2], p99: took[len(took)*99/100],
	}
}

// filterNames sums the names that Filter was offered, and its calls.
func filterNames(ctx context.Context, s *stack.Stack) (names, calls float64, err error) {
	for _, r := range s.Replicas {
		families, err := r.Metrics(ctx)
		if err != nil {
			return 0, 0, err
		}
		for _, m := range families["lockstep_extender_names_per_call"].GetMetric() {
			if len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == "filter" {
				names += m.GetHistogram().GetSampleSum()
				calls += float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return names, calls, nil
}

// clean deletes the pods and waits until they are gone, for the next run.
func clean(ctx context.Context, s *stack.Stack, namespace string) error {
	now := int64(0)
	pods := s.Client.CoreV1().Pods(namespace)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		return err
	}
	for {
		list, err := pods.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d pods are left of the last run", len(list.Items))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// report prints the medians, and what they are of the native arm's and the plain
// arm's.
func (b *bench) report(out io.Writer) {
	median := func(name string, sc scenario, of func(result) float64) float64 {
		var list []float64
		for _, r := range b.results[name][sc] {
			list = append(list, of(r))
		}
		if len(list) == 0 {
			return 0
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	for _, sc := range scenarios {
		fmt.Fprintf(out, "\n%s\n%-10s %28s %28s %28s %28s %8s\n", sc, "", "pods/s (×plain ×native)", "gang p50 s (×plain ×native)", "gang p99 s (×plain ×native)", "scheduler ms/pod (×plain)", "names")
		for _, a := range arms {
			if b.results[a.name] == nil {
				continue
			}
			var line strings.Builder
			fmt.Fprintf(&line, "%-10s", a.name)
			for i, of := range []func(result) float64{
				func(r result) float64 { return r.podsPerSecond },
				func(r result) float64 { return r.p50 },
				func(r result) float64 { return r.p99 },
				func(r result) float64 { return r.cpuPerPod * 1000 },
			} {
				v, plain, native := median(a.name, sc, of), median("plain", sc, of), median("native", sc, of)
				cell := fmt.Sprintf("%8.2f", v)
				if plain > 0 {
					cell += fmt.Sprintf(" ×%.2f", v/plain)
				}
				if native > 0 && i < 3 {
					cell += fmt.Sprintf(" ×%.2f", v/native)
				}
				fmt.Fprintf(&line, " %28s", cell)
			}
			fmt.Fprintf(out, "%s %8.2f\n", line.String(), median(a.name, sc, func(r result) float64 { return r.namesPerCall }))
		}
	}
}
