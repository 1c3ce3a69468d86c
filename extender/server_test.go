package extender

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(t.TempDir(), "ca.crt")}
	a.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	write(t, a.file, "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func write(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue writes a certificate for 127.0.0.1 and its key.
func (a *authority) issue(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certFile, "CERTIFICATE", der)
	write(t, keyFile, "EC PRIVATE KEY", private)
}

// serve runs the handler until the test or stop ends it.
func serve(t *testing.T, o ServerOptions, h http.Handler, ending func()) (address string, stop context.CancelFunc, done <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	at, out := make(chan string, 1), make(chan error, 1)
	o.Listen = "127.0.0.1:0"
	go func() { out <- Serve(ctx, o, h, func(a net.Addr) { at <- a.String() }, ending) }()
	t.Cleanup(cancel)
	select {
	case address = <-at:
	case err := <-out:
		t.Fatal(err)
	}
	return address, cancel, out
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	h, _ := newHandler(t, &desk{seat: Seat{Node: "n1"}})
	counted := 0
	address, _, _ := serve(t, ServerOptions{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
	}), func() {})
	dialer := &net.Dialer{}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
		counted++
		return dialer.DialContext(ctx, network, to)
	}}}
	body, err := json.Marshal(args("n1", "n2"))
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		// As kube-scheduler does: decode one value, and do not read to the end.
		response, err := client.Post("http://"+address+Prefix+"/filter", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var out extenderv1.ExtenderFilterResult
		if err := json.NewDecoder(response.Body).Decode(&out); err != nil || response.ContentLength <= 0 {
			t.Fatal(err, response.ContentLength)
		}
		_ = response.Body.Close()
	}
	if counted != 1 {
		t.Errorf("200 calls made %d connections", counted)
	}
}

func TestClientCertificates(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	ca.issue(t, file("tls.crt"), file("tls.key"), 2)
	ca.issue(t, file("client.crt"), file("client.key"), 3)
	stranger.issue(t, file("other.crt"), file("other.key"), 4)
	d := &desk{seat: Seat{Any: true}}
	reg := prometheus.NewRegistry()
	h := New(Options{
		Seats: d, Binder: d, Victims: d, Ready: func() error { return nil }, BindTimeout: time.Minute, ClientCertificates: true,
		Registerer: reg, Gatherer: reg, Log: slog.New(slog.DiscardHandler),
	})
	address, _, _ := serve(t, ServerOptions{CertFile: file("tls.crt"), KeyFile: file("tls.key"), ClientCAFile: ca.file}, h, func() {})
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	client := func(name string) *http.Client {
		config := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		if name != "" {
			pair, err := tls.LoadX509KeyPair(file(name+".crt"), file(name+".key"))
			if err != nil {
				t.Fatal(err)
			}
			// Also where the server says that it does not know its CA.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	}
	get := func(c *http.Client, verb bool) int {
		var response *http.Response
		var err error
		if verb {
			response, err = c.Post("https://"+address+Prefix+"/filter", "application/json", bytes.NewReader([]byte(`{"Pod":{},"NodeNames":[]}`)))
		} else {
			response, err = c.Get("https://" + address + "/healthz")
		}
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	for _, c := range []struct {
		client string
		verb   bool
		want   int
	}{
		{"", false, http.StatusOK},
		{"", true, http.StatusUnauthorized},
		{"client", true, http.StatusOK},
		{"other", true, 0}, // the handshake fails
	} {
		if got := get(client(c.client), c.verb); got != c.want {
			t.Errorf("client %q, verb %t: got %d, want %d", c.client, c.verb, got, c.want)
		}
	}
}

// TestCertificateIsReadAgain when its files change, and bad files leave the old one.
func TestCertificateIsReadAgain(t *testing.T) {
	ca := newAuthority(t)
	folder := t.TempDir()
	c := &certificate{certFile: filepath.Join(folder, "tls.crt"), keyFile: filepath.Join(folder, "tls.key")}
	serial := func() int64 {
		t.Helper()
		if l := c.current.Load(); l != nil {
			old := *l
			old.checked = time.Time{} // the check is due
			c.current.Store(&old)
		}
		pair, err := c.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return cert.SerialNumber.Int64()
	}
	touch := func(age time.Duration) {
		t.Helper()
		for _, file := range []string{c.certFile, c.keyFile} {
			if err := os.Chtimes(file, time.Time{}, time.Now().Add(-age)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := c.get(nil); err == nil {
		t.Error("files that are not there are no error")
	}
	ca.issue(t, c.certFile, c.keyFile, 2)
	touch(3 * time.Hour)
	if got := serial(); got != 2 {
		t.Errorf("got certificate %d", got)
	}
	ca.issue(t, c.certFile, c.keyFile, 3)
	touch(2 * time.Hour)
	if got := serial(); got != 3 {
		t.Errorf("after a change: got certificate %d", got)
	}
	if err := os.WriteFile(c.certFile, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	touch(time.Hour)
	if got := serial(); got != 3 {
		t.Errorf("with half a file: got certificate %d", got)
	}
}

// TestEndAnswersCallsUnderWay: readiness fails first, and a bind that waits gets its
// answer.
func TestEndAnswersCallsUnderWay(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	d := &desk{bind: func(context.Context, PodRef, string) error {
		close(arrived)
		<-release
		return nil
	}}
	h, _ := newHandler(t, d)
	ended := make(chan struct{})
	address, stop, done := serve(t, ServerOptions{Drain: time.Minute}, h, func() { close(ended) })
	answer := make(chan int, 1)
	go func() {
		body := `{"PodName":"p","PodNamespace":"n","PodUID":"u","Node":"n1"}`
		response, err := http.Post("http://"+address+Prefix+"/bind", "application/json", bytes.NewReader([]byte(body)))
		if err != nil {
			answer <- 0
			return
		}
		_ = response.Body.Close()
		answer <- response.StatusCode
	}()
	<-arrived
	stop()
	<-ended
	close(release)
	if got := <-answer; got != http.StatusOK {
		t.Errorf("the bind under way got %d", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
