package cluster

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// amount is how much of a resource: millicores for cpu, bytes for memory and
// storage, pieces for the rest. Lists of amounts are sorted by resource name.
type amount struct {
	resource string
	n        int64
}

// pods is the resource of which each pod takes one.
const pods = string(corev1.ResourcePods)

// amountsOf converts a pod's requests. Zero requests are left out: the scheduler
// does not check them. The resource that only marks gang members is not real.
func amountsOf(list corev1.ResourceList) []amount {
	out := make([]amount, 0, len(list)+1)
	for name, q := range list {
		if name == v1alpha1.MemberResource || name == corev1.ResourcePods || q.IsZero() {
			continue
		}
		out = append(out, amount{string(name), quantity(name, q.Value(), q.MilliValue())})
	}
	out = append(out, amount{pods, 1})
	slices.SortFunc(out, func(a, b amount) int { return cmp.Compare(a.resource, b.resource) })
	return out
}

// capacityOf converts a node's allocatable.
func capacityOf(list corev1.ResourceList) []amount {
	out := make([]amount, 0, len(list))
	for name, q := range list {
		out = append(out, amount{string(name), quantity(name, q.Value(), q.MilliValue())})
	}
	slices.SortFunc(out, func(a, b amount) int { return cmp.Compare(a.resource, b.resource) })
	return out
}

func quantity(name corev1.ResourceName, value, milli int64) int64 {
	if name == corev1.ResourceCPU {
		return milli
	}
	return value
}

func amountOf(list []amount, resource string) int64 {
	i, ok := slices.BinarySearchFunc(list, resource, func(a amount, r string) int { return cmp.Compare(a.resource, r) })
	if !ok {
		return 0
	}
	return list[i].n
}

// asMap is the form in which a reservation carries requests.
func asMap(list []amount) map[string]int64 {
	out := make(map[string]int64, len(list))
	for _, a := range list {
		out[a.resource] = a.n
	}
	return out
}
