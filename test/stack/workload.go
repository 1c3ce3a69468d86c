package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/test/lab"
)

// Workload describes pods that are alike.
type Workload struct {
	Namespace, Name string
	// Pods is how many there are; Gang is their gang's name, empty for none, and
	// Min its minimum, 0 for all of them.
	Pods int
	Gang string
	Min  int
	// GPUs and CPU of each pod; CPU defaults to 1.
	GPUs int
	CPU  string
	// Annotations and Labels are added to the pods.
	Annotations, Labels map[string]string
	// RunSeconds until each pod succeeds; 0: for ever.
	RunSeconds int
	// Change edits the pod's template at last.
	Change func(*corev1.PodTemplateSpec)
}

func (w *Workload) template() corev1.PodTemplateSpec {
	cpu := w.CPU
	if cpu == "" {
		cpu = "1"
	}
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	limits := corev1.ResourceList{}
	if w.GPUs > 0 {
		limits[lab.GPUResource] = *resource.NewQuantity(int64(w.GPUs), resource.DecimalSI)
	}
	annotations := map[string]string{}
	if w.Gang != "" {
		minimum := w.Min
		if minimum == 0 {
			minimum = w.Pods
		}
		annotations[v1alpha1.Gang], annotations[v1alpha1.MinMember] = w.Gang, fmt.Sprint(minimum)
	}
	if w.RunSeconds > 0 {
		annotations[lab.AnnotationRunSeconds] = fmt.Sprint(w.RunSeconds)
	}
	maps.Copy(annotations, w.Annotations)
	labels := map[string]string{"app": w.Name}
	maps.Copy(labels, w.Labels)
	zero := int64(0)
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: annotations, Labels: labels},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &zero,
			Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}},
		},
	}
	if w.Change != nil {
		w.Change(&template)
	}
	return template
}

// Job gives the workload as an indexed Job.
func (w *Workload) Job() *batchv1.Job {
	n, mode := int32(w.Pods), batchv1.IndexedCompletion
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name},
		Spec:       batchv1.JobSpec{Parallelism: &n, Completions: &n, CompletionMode: &mode, Template: w.template()},
	}
}

// Pod gives the i-th pod of the workload, as a pod without a controller.
func (w *Workload) Pod(i int) *corev1.Pod {
	t := w.template()
	t.Namespace, t.Name = w.Namespace, fmt.Sprintf("%s-%d", w.Name, i)
	return &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
}

// CreateJob creates the workload as a Job.
func (s *Stack) CreateJob(ctx context.Context, w Workload) error {
	if _, err := s.Client.BatchV1().Jobs(w.Namespace).Create(ctx, w.Job(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating job %s/%s: %w", w.Namespace, w.Name, err)
	}
	return nil
}

// CreatePods creates pods, at most sixteen at the same time, in their order.
func (s *Stack) CreatePods(ctx context.Context, pods ...*corev1.Pod) error {
	next := make(chan *corev1.Pod)
	go func() {
		defer close(next)
		for _, p := range pods {
			next <- p
		}
	}()
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for range min(16, len(pods)) {
		wg.Go(func() {
			for p := range next {
				if _, err := s.Client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("creating pod %s/%s: %w", p.Namespace, p.Name, err))
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs[:min(3, len(errs))]...)
}

// Interleave mixes the workloads' pods: the first of each, the second of each, ...
func Interleave(workloads ...Workload) []*corev1.Pod {
	var out []*corev1.Pod
	for i := 0; ; i++ {
		before := len(out)
		for w := range workloads {
			if i < workloads[w].Pods {
				out = append(out, workloads[w].Pod(i))
			}
		}
		if len(out) == before {
			return out
		}
	}
}
