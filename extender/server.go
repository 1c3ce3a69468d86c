package extender

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ServerOptions say how a handler is served.
type ServerOptions struct {
	// Listen is host:port.
	Listen string
	// CertFile and KeyFile (PEM) are read again when they change. Without them
	// plain HTTP is served.
	CertFile, KeyFile string
	// ClientCAFile (PEM) signs the certificates of callers, if set.
	ClientCAFile string
	// HTTP2 allows HTTP/2, over which all calls of a scheduler go to one replica.
	HTTP2 bool
	// Drain is how long calls under way may take after the end was asked for.
	Drain time.Duration
}

// maxConnAge is how long a connection is used, give or take a tenth, so that a new
// replica soon gets its share.
const maxConnAge = 5 * time.Minute

// Serve serves the handler until ctx ends and the calls under way are answered.
// It calls listening with the address once it listens. ending is called when the
// end begins, for the readiness probe to fail first.
func Serve(ctx context.Context, o ServerOptions, h http.Handler, listening func(net.Addr), ending func()) error {
	server := &http.Server{
		Handler: recycle(h), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			age := maxConnAge + time.Duration((rand.Float64()-0.5)*0.2*float64(maxConnAge))
			return context.WithValue(ctx, expiry{}, time.Now().Add(age))
		},
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(o.HTTP2)
	server.Protocols = protocols
	if o.CertFile != "" {
		var err error
		if server.TLSConfig, err = tlsConfig(o); err != nil {
			return err
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", o.Listen, err)
	}
	listening(listener.Addr())
	failed := make(chan error, 1)
	go func() {
		if o.CertFile != "" {
			failed <- server.ServeTLS(listener, "", "")
		} else {
			failed <- server.Serve(listener)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serving on %s: %w", o.Listen, err)
	case <-ctx.Done():
	}
	ending()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Drain)
	defer cancel()
	if err := server.Shutdown(drain); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("ending the server: %w", err)
	}
	return server.Close()
}

// expiry is the context key of when a connection is to be closed.
type expiry struct{}

// recycle closes connections that are old, after their call.
func recycle(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at, ok := r.Context().Value(expiry{}).(time.Time); ok && time.Now().After(at) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

func tlsConfig(o ServerOptions) (*tls.Config, error) {
	pair := &certificate{certFile: o.CertFile, keyFile: o.KeyFile}
	if _, err := pair.get(nil); err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
	if o.ClientCAFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(o.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("reading the clients' CA: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading the clients' CA: %s has no certificate in PEM", o.ClientCAFile)
	}
	// Probes and scrapes have no certificate: the verbs' routes demand one.
	config.ClientAuth = tls.VerifyClientCertIfGiven
	return config, nil
}

// certificate is a certificate that is read again when its files change.
type certificate struct {
	certFile, keyFile string

	current atomic.Pointer[loaded]
	mu      sync.Mutex
}

type loaded struct {
	pair    tls.Certificate
	stamp   [2]time.Time
	checked time.Time
}

const certificateCheck = time.Second

// get gives the certificate. A change that cannot be read leaves the last one in
// use: half-written files must not end the service.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	now := time.Now()
	if l := c.current.Load(); l != nil && now.Sub(l.checked) < certificateCheck {
		return &l.pair, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.current.Load()
	stamp, err := c.stamps()
	if err == nil && (old == nil || stamp != old.stamp) {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(c.certFile, c.keyFile); err == nil {
			old = &loaded{pair: pair, stamp: stamp}
		}
	}
	if old == nil {
		return nil, fmt.Errorf("reading the server's certificate: %w", err)
	}
	next := *old
	next.checked = now
	c.current.Store(&next)
	return &next.pair, nil
}

func (c *certificate) stamps() (out [2]time.Time, err error) {
	for i, file := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(file)
		if err != nil {
			return out, err
		}
		out[i] = info.ModTime()
	}
	return out, nil
}
