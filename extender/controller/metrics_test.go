package controller

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/lockstep-scheduler/lockstep/gang"
)

func TestMetricsAreClean(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg)
	m.set(map[label]int{{phaseWaiting, "room"}: 2}, map[gang.Code]float64{gang.CodeRoom: 7})
	m.outcomes.WithLabelValues("reserved")
	m.lost.WithLabelValues("refused")
	NewWriter(nil, reg).count("pin", nil)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	m.set(nil, nil)
	if n := testutil.CollectAndCount(m.gangs); n != 0 {
		t.Errorf("gangs that wait no more still show %d series", n)
	}
}
