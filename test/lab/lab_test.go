package lab

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// mortalEnv makes the test binary a process that starts a lab and waits to be killed.
const mortalEnv = "LOCKSTEP_LAB_MORTAL"

func TestMain(m *testing.M) {
	if os.Getenv(mortalEnv) == "" {
		os.Exit(m.Run())
	}
	l, err := Start(context.Background(), Options{NoScheduler: true})
	if err != nil {
		panic(err)
	}
	for _, p := range l.processes {
		println("pid", p.cmd.Process.Pid)
	}
	println("folder", l.folder.path)
	println("ready")
	select {}
}

func TestJobRunsToItsEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	ctx := t.Context()
	l, err := Start(ctx, Options{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	folder := l.folder.path
	pids := map[Component]int{}
	for component, p := range l.processes {
		pids[component] = p.cmd.Process.Pid
	}
	defer func() { _ = l.Stop() }()
	if len(pids) != len(Components()) {
		t.Errorf("runs %v", pids)
	}
	pools, err := ParseNodes([]byte(`nodes: [{name: "n{n}", count: 3, gpus: 8}]`))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.CreateNodes(ctx, pools); err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(l.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("job", func(t *testing.T) { runJob(t, client) })
	t.Run("rights", func(t *testing.T) { rights(t, l, client) })
	t.Run("kubelets", func(t *testing.T) { kubelets(t, l, client) })
	t.Run("scheduler", func(t *testing.T) {
		if s, err := l.CPUSeconds(Scheduler); err != nil || s <= 0 {
			t.Errorf("processor time %v, %v", s, err)
		}
		if err := l.StopScheduler(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.CPUSeconds(Scheduler); err == nil {
			t.Error("a stopped scheduler still uses time")
		}
		if err := l.StartScheduler(ctx, plainSchedulerConfig); err != nil {
			t.Fatal(err)
		}
	})
	if err := l.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		gone(t, pid)
	}
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func runJob(t *testing.T, client kubernetes.Interface) {
	three := int32(3)
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: "default"},
		Spec: batchv1.JobSpec{Parallelism: &three, Completions: &three, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationRunSeconds: "1"}},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
				Name: "main", Image: "none",
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{GPUResource: resource.MustParse("8")}},
			}}},
		}},
	}
	if _, err := client.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		got, err := client.BatchV1().Jobs("default").Get(t.Context(), "job", metav1.GetOptions{})
		return err == nil && got.Status.Succeeded == 3
	})
}

// rights checks that a service account may do what it was given, and no more.
func rights(t *testing.T, l *Lab, client kubernetes.Interface) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "few", Namespace: "default"}}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config, err := l.ServiceAccountConfig(t.Context(), "default", "few")
	if err != nil {
		t.Fatal(err)
	}
	few, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := few.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an account without rights lists pods: %v", err)
	}
	if _, err := few.Discovery().ServerVersion(); err != nil {
		t.Errorf("the account is not known: %v", err)
	}
}

// kubelets checks that KWOK cannot hit a pod that it does not mean.
func kubelets(t *testing.T, l *Lab, client kubernetes.Interface) {
	config := rest.CopyConfig(l.Config())
	config.Impersonate = rest.ImpersonationConfig{UserName: users[KWOK].name, Groups: users[KWOK].groups}
	kwok, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "again", Namespace: "default"},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "lab/never"}},
			Containers:      []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	now := *metav1.NewDeleteOptions(0)
	now.DryRun = []string{metav1.DryRunAll}
	eventually(t, func() bool { // the policy is in force a moment after the start
		return apierrors.IsForbidden(kwok.CoreV1().Pods("default").Delete(t.Context(), "again", now))
	})
	running := []byte(`{"status":{"phase":"Running"}}`)
	if _, err := kwok.CoreV1().Pods("default").Patch(t.Context(), "again", types.MergePatchType, running, metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) {
		t.Errorf("a pod without a node runs: %v", err)
	}
	if err := client.CoreV1().Pods("default").Delete(t.Context(), "again", now); err != nil {
		t.Errorf("others are restrained, too: %v", err)
	}
}

// TestNothingOutlivesTheParent, even one that is killed.
func TestNothingOutlivesTheParent(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), mortalEnv+"=1")
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	folder := ""
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		word, value, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "pid":
			pid, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		case "folder":
			folder = value
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if len(pids) != len(Components())-1 || folder == "" {
		t.Fatalf("pids %v, folder %q", pids, folder)
	}
	for _, pid := range pids {
		gone(t, pid)
	}
	eventually(t, func() bool {
		_, err := os.Stat(folder)
		return errors.Is(err, fs.ErrNotExist)
	})
}

func gone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, func() bool {
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
			return true
		}
		// Not waited for by anybody yet, but dead.
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err == nil && strings.Contains(string(stat), ") Z ")
	})
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatal("the condition did not come to hold")
}
