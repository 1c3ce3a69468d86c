package main

import (
	"bytes"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-scheduler/lockstep/extender"
	"github.com/lockstep-scheduler/lockstep/extender/cluster"
	"github.com/lockstep-scheduler/lockstep/extender/controller"
	"github.com/lockstep-scheduler/lockstep/gang/reservation"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

// described is a Registerer that notes what is registered.
type described struct {
	*prometheus.Registry
	lines map[string]string
}

var descPattern = regexp.MustCompile(`fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)", unit: "[^"]*", constLabels: \{\}, variableLabels: \{([^}]*)\}`)

func (d *described) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for desc := range descs {
		found := descPattern.FindStringSubmatch(desc.String())
		if found == nil {
			return fmt.Errorf("cannot read %s", desc)
		}
		d.lines[found[1]] = fmt.Sprintf("| `%s` | %s | %s |\n", found[1], found[3], found[2])
	}
	return d.Registry.Register(c)
}

func (d *described) MustRegister(list ...prometheus.Collector) {
	for _, c := range list {
		if err := d.Register(c); err != nil {
			panic(err)
		}
	}
}

// TestMetricsPage keeps docs/metrics.md true.
func TestMetricsPage(t *testing.T) {
	reg := &described{prometheus.NewRegistry(), map[string]string{}}
	client, server, err := reservation.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	store := reservation.New(reservation.Options{Cluster: "test", Client: client, Registerer: reg, Log: slog.New(slog.DiscardHandler)})
	writer := controller.NewWriter(nil, reg)
	controller.New(controller.Options{}, cluster.New(cluster.Options{}), store, reservation.NewMirror(store), writer, nil, reg)
	extender.New(extender.Options{Registerer: reg, Gatherer: reg})

	var page bytes.Buffer
	page.WriteString("# Metrics of the extender\n\nWritten by `go test ./cmd/extender -run MetricsPage -update`. Times are in seconds; labels have few values.\n\n| metric | labels | |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(reg.lines)) {
		page.WriteString(reg.lines[name])
	}
	path := filepath.Join("..", "..", "docs", "metrics.md")
	if *update {
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(have, page.Bytes()) {
		t.Errorf("docs/metrics.md is not up to date (%v): run with -update", err)
	}
}
