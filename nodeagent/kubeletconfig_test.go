package nodeagent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNUMAPolicy(t *testing.T) {
	for text, want := range map[string]string{
		"kind: KubeletConfiguration\ntopologyManagerPolicy: single-numa-node\n":   "single-numa-node",
		`{"kind": "KubeletConfiguration", "topologyManagerPolicy": "restricted"}`: "restricted",
		"kind: KubeletConfiguration\n":                                            "",
		"topologyManagerPolicy: [":                                                "",
		"":                                                                        "",
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := NUMAPolicy(path); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := NUMAPolicy(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("without a file: %q", got)
	}
}
