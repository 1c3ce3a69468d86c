package nodeagent

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// Reasons of the condition Ready.
const (
	reasonReported = "Reported"
	reasonNoGPUs   = "NoGPUs"
	reasonDriver   = "DriverDoesNotAnswer"
	reasonKubelet  = "KubeletDoesNotAnswer"
)

// reading is what one poll found. What could not be read is nil, and why is said.
type poll struct {
	inventory *Inventory
	driver    error
	uses      []Use
	kubelet   error
}

// report makes the status of a poll, less its times and its generation.
func report(p poll) v1alpha1.NodeTopologyStatus {
	out := v1alpha1.NodeTopologyStatus{}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonReported, Message: "all was read"}
	unread := func(reason string, err error) {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reason, clip(err.Error())
	}
	switch inv := p.inventory; {
	case p.driver != nil:
		unread(reasonDriver, p.driver)
	case len(inv.GPUs) == 0:
		ready.Reason, ready.Message = reasonNoGPUs, "no GPUs"
		if inv.Absent != "" {
			ready.Message += ": " + inv.Absent
		}
	case p.kubelet != nil:
		unread(reasonKubelet, p.kubelet)
	case len(inv.Gaps) > 0:
		ready.Message = clip("not all could be read: " + strings.Join(inv.Gaps, "; "))
	}
	out.Conditions = []metav1.Condition{ready}
	if p.inventory != nil {
		describe(&out, p.inventory)
	}
	for _, u := range p.uses {
		pod := v1alpha1.PodGPUs{Namespace: u.Namespace, Name: u.Name, Shared: u.Shared, GPUs: []int32{}}
		for _, i := range u.GPUs {
			pod.GPUs = append(pod.GPUs, int32(i))
		}
		out.Pods = append(out.Pods, pod)
	}
	out.FreeCount = int32(len(p.free()))
	return out
}

// free are the GPUs, by NVML's index, that a pod can be given whole.
func (p poll) free() map[int]bool {
	free := map[int]bool{}
	if p.inventory == nil {
		return free
	}
	for _, g := range p.inventory.GPUs {
		if g.Health.Unhealthy() == "" && !g.MIG {
			free[g.Index] = true
		}
	}
	for _, u := range p.uses {
		for _, i := range u.GPUs {
			delete(free, i)
		}
	}
	return free
}

// clip keeps a message short.
func clip(text string) string {
	const limit = 500
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	return text
}

func describe(out *v1alpha1.NodeTopologyStatus, inv *Inventory) {
	out.DriverVersion, out.NUMAPolicy = inv.Driver, inv.NUMAPolicy
	out.GPUCount = int32(len(inv.GPUs))
	for _, g := range inv.GPUs {
		gpu := v1alpha1.GPU{
			Index: int32(g.Index), UUID: g.UUID, Model: g.Model, MemoryBytes: int64(g.Memory),
			PCIBusID: g.Bus, MIG: g.MIG, Unhealthy: g.Health.Unhealthy(),
		}
		if g.NUMA >= 0 {
			numa := int32(g.NUMA)
			gpu.NUMANode = &numa
		}
		out.GPUs = append(out.GPUs, gpu)
	}
	for _, l := range inv.Links {
		out.Links = append(out.Links, v1alpha1.GPULink{
			A: int32(l.A), B: int32(l.B), Path: l.Path.String(), NVLinks: int32(l.NVLinks), Switched: l.Switched, MBps: int64(l.GBps*1000 + 0.5),
		})
	}
	slices.SortFunc(out.Links, func(a, b v1alpha1.GPULink) int { return cmp.Or(cmp.Compare(a.A, b.A), cmp.Compare(a.B, b.B)) })
	out.Fabric = fabricOf(inv.GPUs)
}

// fabricOf is the fabric that all GPUs of the node are in; nil if they are not in
// one and the same.
func fabricOf(gpus []GPU) *v1alpha1.Fabric {
	if len(gpus) == 0 || gpus[0].Fabric == nil {
		return nil
	}
	first := *gpus[0].Fabric
	for _, g := range gpus {
		if g.Fabric == nil || *g.Fabric != first {
			return nil
		}
	}
	return &v1alpha1.Fabric{ClusterUUID: first.Cluster, CliqueID: first.Clique}
}

// carry gives the new report the generation and the times that follow on the old
// one. It tells whether there is anything to write: a change, or a heartbeat that
// is due.
func carry(old *v1alpha1.NodeTopologyStatus, fresh *v1alpha1.NodeTopologyStatus, now time.Time, heartbeat time.Duration) bool {
	fresh.HeartbeatSeconds = int32(heartbeat.Seconds())
	fresh.HeartbeatTime = metav1.NewMicroTime(now)
	fresh.Generation = old.Generation
	for i := range fresh.Conditions {
		c := &fresh.Conditions[i]
		c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		for _, before := range old.Conditions {
			if before.Type == c.Type && before.Status == c.Status {
				c.LastTransitionTime = before.LastTransitionTime
			}
		}
	}
	a, b := *old, *fresh
	a.HeartbeatTime, b.HeartbeatTime = metav1.MicroTime{}, metav1.MicroTime{}
	if !equality.Semantic.DeepEqual(a, b) {
		fresh.Generation++
		return true
	}
	return now.Sub(old.HeartbeatTime.Time) >= heartbeat
}
