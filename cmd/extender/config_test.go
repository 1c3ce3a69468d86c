package main

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says []string // all in one error; none: no error
	}{
		"defaults":         {},
		"everything":       {args: []string{"--listen=:9443", "--tls-cert-file=a", "--tls-key-file=b", "--client-ca-file=c", "--levels=zone=z;rack=r|s", "--log-level=debug"}},
		"loopback is fine": {args: []string{"--listen=localhost:1"}},
		"plain on purpose": {args: []string{"--listen=0.0.0.0:1", "--insecure"}},
		"plain by mistake": {args: []string{"--listen=0.0.0.0:1"}, says: []string{"--tls-cert-file"}},
		"half a pair":      {args: []string{"--tls-cert-file=a"}, says: []string{"go together"}},
		"CA without TLS":   {args: []string{"--client-ca-file=a"}, says: []string{"--client-ca-file needs"}},
		"no port":          {args: []string{"--listen=here"}, says: []string{`--listen="here"`}},
		"all at once":      {args: []string{"--start-timeout=1ms", "--barrier-timeout=0s", "--heal-grace=0s", "--kube-api-qps=0", "--gpu-resource=", "--cluster-name=", "--log-level=loud"}, says: []string{"--start-timeout=1ms", "--barrier-timeout=0s", "--heal-grace=0s", "--kube-api-qps=0", "--gpu-resource", "--cluster-name", `--log-level="loud"`}},
		"levels":           {args: []string{"--levels=host=x"}, says: []string{"--levels", `"host"`}},
		"left over":        {args: []string{"start"}, says: []string{`"start"`}},
		"unknown":          {args: []string{"--redis"}, says: []string{"-redis"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(c.args, io.Discard)
			if (err != nil) != (len(c.says) > 0) {
				t.Fatalf("got %v", err)
			}
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("got %q, want it to name %s", err, text)
				}
			}
		})
	}
	if _, err := parse([]string{"--help"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("--help: got %v", err)
	}
}
