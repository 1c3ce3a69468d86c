package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
)

func TestBadFlagsAreNamedAtOnce(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	_, err := parse([]string{"--gpu-resource=gpu", "--interval=1ms", "--heartbeat=0s", "--listen=x", "--log-level=loud"}, io.Discard)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"--node-name", `--gpu-resource="gpu"`, "--interval=1ms", "--heartbeat=0s", `--listen="x"`, `--log-level="loud"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if _, err := parse([]string{"stray"}, io.Discard); err == nil || !strings.Contains(err.Error(), `"stray"`) {
		t.Errorf("got %v", err)
	}
	var help bytes.Buffer
	if _, err := parse([]string{"--help"}, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "-simulate") {
		t.Errorf("got %v\n%s", err, help.String())
	}
	t.Setenv("NODE_NAME", "gpu-7")
	if c, err := parse(nil, io.Discard); err != nil || c.node != "gpu-7" {
		t.Errorf("got %+v, %v", c, err)
	}
}
