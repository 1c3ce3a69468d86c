package stack

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
)

// cert is the path of a file that makeCerts has made.
func (s *Stack) cert(name string) string { return filepath.Join(s.folder, "certs", name) }

// makeCerts runs the shipped script, in a copy: it writes beside itself.
func (s *Stack) makeCerts() error {
	const name = "make-certs.sh"
	script, err := os.ReadFile(filepath.Join(Root(), "deploy", name))
	if err != nil {
		return fmt.Errorf("reading the script that makes certificates: %w", err)
	}
	path := filepath.Join(s.folder, name)
	if err := os.WriteFile(path, script, 0o700); err != nil {
		return fmt.Errorf("copying the script that makes certificates: %w", err)
	}
	if text, err := exec.Command("sh", path).CombinedOutput(); err != nil {
		return fmt.Errorf("making certificates: %w: %s", err, text)
	}
	pem, err := os.ReadFile(s.cert("ca.crt"))
	if err != nil {
		return fmt.Errorf("reading the CA: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	s.http = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	return nil
}
