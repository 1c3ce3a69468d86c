package nodeagent

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func TestReportSaysWhatIsWrong(t *testing.T) {
	many := fourGPUs()
	for range 100 {
		many.Gaps = append(many.Gaps, "GPU 0: something that takes some words to say")
	}
	partitioned := fourGPUs()
	partitioned.GPUs[3].MIG = true
	for name, c := range map[string]struct {
		poll    poll
		status  metav1.ConditionStatus
		reason  string
		message string
		free    int32
	}{
		"all read":   {poll{inventory: fourGPUs(), uses: []Use{{GPUs: []int{0, 2}}}}, metav1.ConditionTrue, "Reported", "all was read", 2},
		"no driver":  {poll{inventory: &Inventory{Absent: "libnvidia-ml is not there"}}, metav1.ConditionTrue, "NoGPUs", "no GPUs: libnvidia-ml is not there", 0},
		"no GPUs":    {poll{inventory: &Inventory{Driver: "1"}}, metav1.ConditionTrue, "NoGPUs", "no GPUs", 0},
		"no answer":  {poll{driver: errors.New("NVML error 999")}, metav1.ConditionFalse, "DriverDoesNotAnswer", "NVML error 999", 0},
		"no kubelet": {poll{inventory: fourGPUs(), kubelet: errors.New("no socket")}, metav1.ConditionFalse, "KubeletDoesNotAnswer", "no socket", 4},
		"MIG":        {poll{inventory: partitioned}, metav1.ConditionTrue, "Reported", "all was read", 3},
		"gaps":       {poll{inventory: many}, metav1.ConditionTrue, "Reported", "not all could be read: GPU 0", 4},
	} {
		s := report(c.poll)
		ready := s.Conditions[0]
		if ready.Status != c.status || ready.Reason != c.reason || !strings.HasPrefix(ready.Message, c.message) || len(ready.Message) > 600 || s.FreeCount != c.free {
			t.Errorf("%s: got %+v, %d free", name, ready, s.FreeCount)
		}
	}
}

func TestReportsAreWrittenOnChangeAndAsHeartbeat(t *testing.T) {
	old := report(poll{inventory: fourGPUs()})
	if !carry(&v1alpha1.NodeTopologyStatus{}, &old, noon, time.Minute) || old.Generation != 1 || old.HeartbeatSeconds != 60 {
		t.Fatalf("the first: %+v", old)
	}
	for name, c := range map[string]struct {
		poll       poll
		after      time.Duration
		due        bool
		generation int64
	}{
		"the same at once":        {poll{inventory: fourGPUs()}, time.Second, false, 1},
		"the same, heartbeat due": {poll{inventory: fourGPUs()}, time.Minute, true, 1},
		"another user":            {poll{inventory: fourGPUs(), uses: []Use{{Name: "p", GPUs: []int{1}}}}, time.Second, true, 2},
		"the driver is gone":      {poll{driver: errors.New("x")}, time.Second, true, 2},
	} {
		fresh := report(c.poll)
		due := carry(&old, &fresh, noon.Add(c.after), time.Minute)
		if due != c.due || fresh.Generation != c.generation {
			t.Errorf("%s: due %t, generation %d", name, due, fresh.Generation)
		}
		changed := fresh.Conditions[0].Status != old.Conditions[0].Status
		if since := fresh.Conditions[0].LastTransitionTime.Time; changed == since.Equal(noon) {
			t.Errorf("%s: Ready since %s", name, since)
		}
	}
}

func TestFabricOfTheNode(t *testing.T) {
	inv := fourGPUs()
	for i := range inv.GPUs {
		inv.GPUs[i].Fabric = &Fabric{"c", 7}
	}
	if f := report(poll{inventory: inv}).Fabric; f == nil || f.ClusterUUID != "c" || f.CliqueID != 7 {
		t.Errorf("got %+v", f)
	}
	inv.GPUs[2].Fabric = &Fabric{"c", 8}
	if f := report(poll{inventory: inv}).Fabric; f != nil {
		t.Errorf("two cliques on one node: got %+v", f)
	}
}
