// Package redistest runs a real Redis for tests.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Start runs redis-server, without persistence, until the test ends, and gives its
// URL. Without redis-server the test fails: it is part of what is tested.
func Start(t testing.TB) string {
	t.Helper()
	url, stop, err := Run(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return url
}

// Run is Start for callers that are no test. The folder is Redis's working folder.
func Run(folder string) (url string, stop func(), err error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil, fmt.Errorf("tests need a real Redis (Debian: apt-get install redis-server): %w", err)
	}
	// Another process may take the port before Redis does: then the next is tried.
	for range 5 {
		if url, stop, err = run(binary, folder); err == nil {
			return url, stop, nil
		}
	}
	return "", nil, err
}

func run(binary, folder string) (string, func(), error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("finding a port for Redis: %w", err)
	}
	address := listener.Addr().(*net.TCPAddr)
	if err := listener.Close(); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(binary, "--bind", "127.0.0.1", "--port", fmt.Sprint(address.Port), "--save", "", "--appendonly", "no", "--dir", folder)
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("starting Redis: %w", err)
	}
	stop := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	client := redis.NewClient(&redis.Options{Addr: address.String()})
	defer func() { _ = client.Close() }()
	var last error
	for range 500 {
		if last = client.Ping(context.Background()).Err(); last == nil {
			return fmt.Sprintf("redis://%s/0", address), stop, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return "", nil, fmt.Errorf("waiting for Redis: %w", last)
}
