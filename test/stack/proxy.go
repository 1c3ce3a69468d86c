package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Proxy stands for the Service: each call goes to the next replica.
type Proxy struct {
	listener net.Listener
	server   *http.Server

	mu       sync.Mutex
	replicas []*url.URL
	next     int
}

// NewProxy starts a proxy without replicas, which answers 503.
func NewProxy() (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for kube-scheduler: %w", err)
	}
	p := &Proxy{listener: listener}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(r.In.Context().Value(target{}).(*url.URL))
		},
		// A bind waits at the barrier, and each wait is a connection.
		Transport: &http.Transport{MaxIdleConnsPerHost: 1000, IdleConnTimeout: time.Minute},
		// A replica that was killed shows in the test's own checks.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	p.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := p.pick()
		if to == nil {
			http.Error(w, "no replica", http.StatusServiceUnavailable)
			return
		}
		forward.ServeHTTP(w, r.WithContext(withTarget(r.Context(), to)))
	})}
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

// target is the context key of the replica that a call goes to.
type target struct{}

func withTarget(ctx context.Context, to *url.URL) context.Context {
	return context.WithValue(ctx, target{}, to)
}

// URL is where the proxy serves.
func (p *Proxy) URL() string { return "http://" + p.listener.Addr().String() }

func (p *Proxy) pick() *url.URL {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.replicas) == 0 {
		return nil
	}
	p.next++
	return p.replicas[p.next%len(p.replicas)]
}

func (p *Proxy) add(replica string) {
	to, err := url.Parse(replica)
	if err != nil {
		panic(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replicas = append(p.replicas, to)
}

// Remove takes a replica out, as its failing readiness does.
func (p *Proxy) Remove(r *Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.replicas[:0:0]
	for _, to := range p.replicas {
		if to.String() != r.url {
			kept = append(kept, to)
		}
	}
	p.replicas = kept
}

func (p *Proxy) close() error {
	if err := p.server.Close(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("closing the proxy: %w", err)
	}
	return nil
}
