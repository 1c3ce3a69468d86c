package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	progressInterval = 15 * time.Second
	lockPollInterval = 200 * time.Millisecond
)

// ensure makes target a folder with the source's binaries. The folder appears
// complete or not at all; a lock beside it keeps other processes from building
// the same thing meanwhile.
func (s source) ensure(ctx context.Context, folder, target string, progress io.Writer) error {
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("making the cache folder for the lab's binaries: %w", err)
	}
	unlock, err := lockFile(ctx, target+".lock", func() {
		fmt.Fprintf(progress, "lab: waiting for another process that builds %s\n", s.name)
	})
	if err != nil {
		return fmt.Errorf("waiting for the build of %s: %w", s.name, err)
	}
	defer unlock()
	if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(target), "building-"+s.name+"-")
	if err != nil {
		return fmt.Errorf("making a folder to build %s in: %w", s.name, err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	if err := s.build(ctx, folder, scratch, progress); err != nil {
		return err
	}
	if err := os.Chmod(scratch, 0o755); err != nil {
		return fmt.Errorf("opening the built %s to readers: %w", s.name, err)
	}
	if err := os.Rename(scratch, target); err != nil {
		return fmt.Errorf("moving the built %s into the cache: %w", s.name, err)
	}
	return nil
}

// build compiles every component of the source into the folder out.
func (s source) build(ctx context.Context, folder, out string, progress io.Writer) error {
	version, err := s.version(folder)
	if err != nil {
		return err
	}
	started := time.Now()
	for _, component := range s.components() {
		what := fmt.Sprintf("%s %s", component, version)
		cmd := s.command(ctx, folder, component, version, filepath.Join(out, string(component)))
		if err := runWithProgress(cmd, what, started, progress); err != nil {
			return fmt.Errorf("building %s in %s: %w", what, cmd.Dir, err)
		}
	}
	return nil
}

func (s source) command(ctx context.Context, folder string, component Component, version, out string) *exec.Cmd {
	ldflags := "-s -w"
	if s.versioned {
		// Clients read the server's version: without these variables it would say v0.0.0.
		major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
		minor, _, _ := strings.Cut(rest, ".")
		const variable = " -X k8s.io/component-base/version."
		ldflags += variable + "gitVersion=" + version + variable + "gitMajor=" + major + variable + "gitMinor=" + minor
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", ldflags, "-o", out, s.packages[component])
	cmd.Dir = filepath.Join(folder, s.name)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if !s.cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	return cmd
}

// runWithProgress runs cmd and writes a line at its start and at each interval.
// The error carries what the command wrote.
func runWithProgress(cmd *exec.Cmd, what string, started time.Time, progress io.Writer) error {
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		fmt.Fprintf(progress, "lab: building %s (%s)\n", what, time.Since(started).Round(time.Second))
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("%w: %s", err, strings.TrimSpace(output.String()))
			}
			return nil
		case <-ticker.C:
		}
	}
}

// lockFile takes an exclusive lock on the file, which it creates. It calls
// waiting once if another process holds the lock.
func lockFile(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(lockPollInterval)
	defer ticker.Stop()
	for announced := false; ; announced = true {
		locked, err := tryLock(file)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
		}
		if locked {
			// Closing the file drops the lock.
			return func() { _ = file.Close() }, nil
		}
		if !announced {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-ticker.C:
		}
	}
}
