package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const (
	tailBytes     = 4096
	probeInterval = 20 * time.Millisecond
)

// spawner forks the lab's components on one thread that lives until close. The
// kernel ties a child's parent-death signal to the forking thread: on a thread
// of the Go scheduler's choice a child could be killed while the lab lives.
type spawner struct {
	requests chan func()
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for request := range s.requests {
			request()
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	result := make(chan error)
	s.requests <- func() { result <- cmd.Start() }
	return <-result
}

// close ends the thread. Children that still live are killed with it.
func (s *spawner) close() { close(s.requests) }

// process is one run of a component.
type process struct {
	component Component
	log       string // path
	cmd       *exec.Cmd
	done      chan struct{} // closed when the process has been waited for
	err       error         // how it ended; read after done
}

// spawn starts a binary with its output appended to the log. Its environment is
// empty but for a home: a proxy or an ETCD_ variable of the caller must not
// change the cluster.
func (s *spawner) spawn(component Component, binary string, args []string, home, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", component, err)
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "TMPDIR=" + home, "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = mortal()
	if err := s.start(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", component, err)
	}
	p := &process{component: component, log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// running reports whether the process has not been waited for yet.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal sends a signal; a process that has ended is an error.
func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %v to %s: %w", sig, p.component, err)
	}
	return nil
}

// kill ends the process at once, also a stopped one, and waits for its end.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.component, err)
	}
	<-p.done
	return nil
}

// terminate asks the process to end and kills it once the grace is over.
func (p *process) terminate(grace time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return p.kill()
	}
}

// await polls until probe succeeds. It fails as soon as the process ends or ctx
// is done, with the last lines of the log.
func (p *process) await(ctx context.Context, probe func(context.Context) error) error {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was ready: %w\n%s", p.component, p.ending(), tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready in time: %w (last probe: %w)\n%s", p.component, context.Cause(ctx), err, tail(p.log))
		case <-ticker.C:
		}
	}
}

var errExited = errors.New("exit status 0")

func (p *process) ending() error {
	if p.err == nil {
		return errExited
	}
	return p.err
}

// tail returns the end of a log file, or why it cannot.
func tail(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil && info.Size() > tailBytes {
		if _, err := file.Seek(-tailBytes, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	if len(data) == tailBytes {
		// The first line is most likely cut.
		if _, rest, ok := bytes.Cut(data, []byte("\n")); ok {
			data = rest
		}
	}
	return string(bytes.TrimSpace(data))
}
