package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const shipped = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 7
extenders:
- urlPrefix: https://somewhere.svc/scheduler
  enableHTTPS: true
  tlsConfig: {caFile: x}
  weight: 20
`

func TestPatchSchedulerConfig(t *testing.T) {
	alone := false
	out, err := PatchSchedulerConfig([]byte(shipped), SchedulerPatch{
		Kubeconfig: "k", QPS: 5, Burst: 6, LeaderElect: &alone, ExtenderURL: "http://127.0.0.1:8",
		Extender: func(_ int, entry map[string]any) { entry["weight"] = 21 },
	})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := yaml.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "percentageOfNodesToScore": 7.0,
		"clientConnection": map[string]any{"kubeconfig": "k", "qps": 5.0, "burst": 6.0},
		"leaderElection":   map[string]any{"leaderElect": false},
		"extenders":        []any{map[string]any{"urlPrefix": "http://127.0.0.1:8/scheduler", "enableHTTPS": false, "weight": 21.0}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for text, patch := range map[string]SchedulerPatch{
		"kind: Pod": {}, "[": {},
		"kind: KubeSchedulerConfiguration":                        {ExtenderURL: "http://a:1"},
		"kind: KubeSchedulerConfiguration\nclientConnection: 1":   {QPS: 1},
		"kind: KubeSchedulerConfiguration\nextenders: [7]":        {},
		"kind: KubeSchedulerConfiguration\nextenders: [{a: 'b'}]": {ExtenderURL: "nowhere"},
	} {
		if _, err := PatchSchedulerConfig([]byte(text), patch); err == nil {
			t.Errorf("%q with %+v is accepted", text, patch)
		}
	}
}

func TestCountAudit(t *testing.T) {
	line := func(stage, user, verb, resource, sub string) string {
		return `{"stage":"` + stage + `","verb":"` + verb + `","user":{"username":"` + user + `"},"objectRef":{"resource":"` + resource + `","subresource":"` + sub + `"},"responseStatus":{"code":201}}` + "\n"
	}
	log := line("ResponseComplete", "b", "create", "pods", "") + line("RequestReceived", "b", "create", "pods", "") +
		line("ResponseComplete", "a", "create", "pods", "binding") + line("ResponseComplete", "b", "create", "pods", "") + `{"half`
	got, err := countAudit(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	want := []AuditCount{{AuditKey{"a", "create", "pods/binding", 201}, 1}, {AuditKey{"b", "create", "pods", 201}, 2}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := countAudit(strings.NewReader("no json\n")); err == nil {
		t.Error("a line that is no JSON is accepted")
	}
}

func TestAssets(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, string(Etcd)), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	got := assets(folder)
	if len(got) != 1 || got[Etcd] != filepath.Join(folder, "etcd") {
		t.Errorf("got %v", got)
	}
	for _, s := range sources() {
		if s.providedBy(got) != (s.name == "etcd") {
			t.Errorf("source %s is provided: %t", s.name, s.providedBy(got))
		}
	}
}

// TestSweep removes what the dead have left, and nothing of the living.
func TestSweep(t *testing.T) {
	alive, err := newFolder()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = alive.remove() }()
	dead := filepath.Join(bases()[0], fmt.Sprintf("%sdead-%d", folderPrefix, os.Getpid()))
	if err := os.Mkdir(dead, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removed, err := Sweep()
	if err != nil || !slices.Contains(removed, dead) || slices.Contains(removed, alive.path) {
		t.Errorf("removed %v, %v", removed, err)
	}
	if _, err := os.Stat(alive.path); err != nil {
		t.Error(err)
	}
	if err := alive.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(alive.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}
