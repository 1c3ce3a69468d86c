package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/lockstep-scheduler/lockstep/test/lab"
)

const readyWithin = 60 * time.Second

// Replica is one process of the extender.
type Replica struct {
	Log string // path

	url  string
	http *http.Client
	cmd  *exec.Cmd
	done chan struct{}
}

func buildExtender(ctx context.Context, folder string, race bool) (string, error) {
	out := filepath.Join(folder, "extender")
	args := []string{"build", "-o", out}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/extender")...)
	cmd.Dir = Root()
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the extender: %w: %s", err, text)
	}
	return out, nil
}

// freeAddress finds a loopback address on which nothing listens.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("finding a port for the extender: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}

func (s *Stack) startReplica(number int) (*Replica, error) {
	kubeconfig := filepath.Join(s.folder, "extender.kubeconfig")
	if err := lab.WriteKubeconfig(kubeconfig, s.account); err != nil {
		return nil, err
	}
	address := s.address
	if address == "" {
		var err error
		if address, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	r := &Replica{
		url: "http://" + address, http: s.http, done: make(chan struct{}),
		Log: filepath.Join(s.opts.LogDir, fmt.Sprintf("extender-%d.log", number)),
	}
	log, err := os.OpenFile(r.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the extender's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	if s.opts.TLS {
		r.url = "https://" + address
	}
	args := []string{"--kubeconfig", kubeconfig, "--listen", address, "--pprof"}
	if s.opts.TLS {
		args = append(args, "--tls-cert-file", s.cert("tls.crt"), "--tls-key-file", s.cert("tls.key"), "--client-ca-file", s.cert("ca.crt"))
	}
	if s.opts.RedisURL != "" {
		args = append(args, "--redis-url", s.opts.RedisURL)
	}
	r.cmd = exec.Command(s.binary, append(args, s.opts.ExtenderArgs...)...)
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = mortal()
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the extender: %w", err)
	}
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait()
	}()
	return r, nil
}

// URL is where the replica serves.
func (r *Replica) URL() string { return r.url }

// PID is the replica's process.
func (r *Replica) PID() int { return r.cmd.Process.Pid }

func (r *Replica) awaitReady(ctx context.Context) error {
	err := poll(ctx, readyWithin, func(ctx context.Context) error {
		select {
		case <-r.done:
			return fmt.Errorf("the extender has ended: %s", r.cmd.ProcessState)
		default:
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := r.http.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
			return fmt.Errorf("readyz: %s: %s", response.Status, text)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the extender was not ready: %w\n%s", err, r.tail())
	}
	return nil
}

func (r *Replica) tail() string {
	text, err := os.ReadFile(r.Log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4096):])
}

// Kill ends the replica at once, as a crash does.
func (r *Replica) Kill() error {
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing the extender: %w", err)
	}
	<-r.done
	return nil
}

// Stop asks the replica to end and waits until it has. A data race that the
// replica's detector has reported is an error.
func (r *Replica) Stop() error {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping the extender: %w", err)
	}
	select {
	case <-r.done:
	case <-time.After(10 * time.Second):
		return errors.Join(fmt.Errorf("the extender did not end within 10s of SIGTERM"), r.Kill())
	}
	text, err := os.ReadFile(r.Log)
	if err == nil && strings.Contains(string(text), "DATA RACE") {
		return fmt.Errorf("the extender has a data race:\n%s", text)
	}
	return nil
}

// Metrics scrapes the replica.
func (r *Replica) Metrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := r.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("scraping the extender: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}
