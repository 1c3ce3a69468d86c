// Package deploy holds what is shipped to clusters; its tests hold the files to
// the types that read them.
package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/extender"
)

// objects decodes every document of a manifest, strictly.
func objects(t *testing.T, path string) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	var out []runtime.Object
	buffer := make([]byte, 1<<20)
	for {
		n, err := reader.Read(buffer)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, object)
	}
}

func TestManifestsAreWhatTheAPIReads(t *testing.T) {
	files, err := filepath.Glob("*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range files {
		// The API server itself reads the CRD in the end-to-end tests.
		if strings.HasPrefix(file, "scheduler") || strings.HasSuffix(file, "kustomization.yaml") || strings.Contains(file, "/lockstep.scheduler_") {
			continue
		}
		seen += len(objects(t, file))
	}
	if seen < 10 {
		t.Errorf("only %d objects in %v", seen, files)
	}
	kustomization, err := os.ReadFile("manifests/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name, ok := strings.CutPrefix(file, "manifests/"); ok && name != "kustomization.yaml" && !strings.Contains(string(kustomization), name) {
			t.Errorf("kustomization.yaml lacks %s", name)
		}
	}
}

// scheduler reads the shipped configuration, strictly.
func scheduler(t *testing.T) *schedulerv1.KubeSchedulerConfiguration {
	t.Helper()
	text, err := os.ReadFile("scheduler/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := &schedulerv1.KubeSchedulerConfiguration{}
	if err := sigsyaml.UnmarshalStrict(text, config); err != nil {
		t.Fatal(err)
	}
	if config.APIVersion != "kubescheduler.config.k8s.io/v1" || len(config.Extenders) != 1 {
		t.Fatalf("got %s with %d extenders", config.APIVersion, len(config.Extenders))
	}
	return config
}

// TestCase_F4_TheSampleSendsNamesOnly, and asks for whom it should.
func TestCase_F4_TheSampleSendsNamesOnly(t *testing.T) {
	e := scheduler(t).Extenders[0]
	if !e.NodeCacheCapable || e.Ignorable || !e.EnableHTTPS || e.Weight < 15 {
		t.Errorf("got %+v", e)
	}
	if !strings.HasSuffix(e.URLPrefix, extender.Prefix) || e.FilterVerb != "filter" || e.PrioritizeVerb != "prioritize" || e.PreemptVerb != "preempt" || e.BindVerb != "bind" {
		t.Errorf("got verbs %+v", e)
	}
	ignored := map[string]bool{}
	for _, r := range e.ManagedResources {
		ignored[r.Name] = r.IgnoredByScheduler
	}
	// Single GPU pods are asked for too: they must not take what is reserved.
	if gpu, ok := ignored[v1alpha1.GPUResource]; !ok || gpu {
		t.Errorf("GPU pods are not managed: %v", ignored)
	}
	if !ignored[v1alpha1.MemberResource] {
		t.Errorf("gang members without GPUs are not managed: %v", ignored)
	}
}

// TestTimeoutsFit: a bind is answered before kube-scheduler gives it up, and before
// the replica is killed.
func TestTimeoutsFit(t *testing.T) {
	limit := scheduler(t).Extenders[0].HTTPTimeout.Duration
	for _, object := range objects(t, "manifests/extender.yaml") {
		d, ok := object.(*appsv1.Deployment)
		if !ok {
			continue
		}
		args := d.Spec.Template.Spec.Containers[0].Args
		i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--barrier-timeout=") })
		if i < 0 {
			t.Fatalf("no --barrier-timeout in %v", args)
		}
		barrier, err := time.ParseDuration(strings.TrimPrefix(args[i], "--barrier-timeout="))
		if err != nil {
			t.Fatal(err)
		}
		grace := time.Duration(*d.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
		if barrier+5*time.Second > limit || barrier+15*time.Second > grace {
			t.Errorf("barrier %s, httpTimeout %s, termination grace %s", barrier, limit, grace)
		}
		return
	}
	t.Fatal("no Deployment in manifests/extender.yaml")
}
