package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

const rootModule = "github.com/lockstep-scheduler/lockstep"

// source is one nested module that pins the versions of some components.
// Each is a module of its own because their dependencies do not agree.
type source struct {
	name      string               // the folder's name under test/lab
	packages  map[Component]string // the main package of each component
	pinned    string               // the module whose version they report
	cgo       bool                 // whether Go's default for cgo applies
	versioned bool                 // whether it takes its version from Kubernetes' link-time variables
}

func sources() []source {
	const k8s = "k8s.io/kubernetes/cmd/"
	return []source{
		{name: "etcd", pinned: "go.etcd.io/etcd/server/v3", packages: map[Component]string{
			Etcd: "go.etcd.io/etcd/server/v3",
		}},
		{name: "kwok", pinned: "sigs.k8s.io/kwok", packages: map[Component]string{
			KWOK: "sigs.k8s.io/kwok/cmd/kwok",
		}},
		{name: "kubernetes", pinned: "k8s.io/kubernetes", cgo: true, versioned: true, packages: map[Component]string{
			APIServer:         k8s + string(APIServer),
			ControllerManager: k8s + string(ControllerManager),
			Scheduler:         k8s + string(Scheduler),
		}},
	}
}

// sourceFolder returns the folder test/lab of the checkout: beside this file
// where the binary knows its source, else through the go command, which a
// binary built with -trimpath needs.
func sourceFolder(ctx context.Context) (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok {
		folder := filepath.Dir(file)
		if _, err := os.Stat(filepath.Join(folder, "kubernetes", "go.mod")); err == nil {
			return folder, nil
		}
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", rootModule).Output()
	if err != nil {
		return "", fmt.Errorf("finding the source of %s with go list: %w", rootModule, withStderr(err))
	}
	folder := filepath.Join(strings.TrimSpace(string(out)), "test", "lab")
	if _, err := os.Stat(filepath.Join(folder, "kubernetes", "go.mod")); err != nil {
		return "", fmt.Errorf("finding the nested modules of the lab: %w", err)
	}
	return folder, nil
}

// withStderr adds what a command wrote to stderr to the error of its Output.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// version returns the version of the pinned module, such as v1.37.2.
func (s source) version(folder string) (string, error) {
	path := filepath.Join(folder, s.name, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the pinned version of %s: %w", s.pinned, err)
	}
	line := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(s.pinned) + `\s+(v\S+)`)
	found := line.FindSubmatch(data)
	if found == nil {
		return "", fmt.Errorf("no version of %s in %s", s.pinned, path)
	}
	return string(found[1]), nil
}

// key identifies what a build of the source yields: the module files, the
// toolchain and the platform. The binaries are cached under it.
func (s source) key(folder string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(folder, s.name, name))
		if err != nil {
			return "", fmt.Errorf("hashing the module %s: %w", s.name, err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(data), data)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}
