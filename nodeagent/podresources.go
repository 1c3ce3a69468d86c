package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Use is what one pod holds of a node's GPUs, as the kubelet tells it: without the
// pod's UID.
type Use struct {
	Namespace, Name string
	GPUs            []int // indices, ascending
	// Shared tells that it holds MIG devices or replicas, not whole GPUs.
	Shared bool
	// Strange are devices that are not of this node's inventory.
	Strange []string
}

// Kubelet reads the kubelet's pod-resources API (KEP-606, KEP-2403).
type Kubelet struct {
	conn   *grpc.ClientConn
	client podresources.PodResourcesListerClient
	// Resource is the prefix of the resources that are GPUs: "nvidia.com/".
	resource string
	driver   string // of DRA
}

// maxPodResources bounds an answer of the kubelet, in bytes.
const maxPodResources = 16 << 20

// NewKubelet makes a client of the socket, without connecting yet. All resources of
// the same vendor as the resource count as GPUs: MIG devices have names of their own.
func NewKubelet(socket, resource string) (*Kubelet, error) {
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodResources)))
	if err != nil {
		return nil, fmt.Errorf("pod-resources at %s: %w", socket, err)
	}
	vendor, _, _ := strings.Cut(resource, "/")
	return &Kubelet{conn, podresources.NewPodResourcesListerClient(conn), vendor + "/", "gpu." + vendor}, nil
}

// Close ends the connection.
func (k *Kubelet) Close() error { return k.conn.Close() }

// Uses asks who uses the GPUs of the inventory.
func (k *Kubelet) Uses(ctx context.Context, inv *Inventory) ([]Use, error) {
	list, err := k.client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet for pod resources: %w", err)
	}
	return uses(list.GetPodResources(), inv, k.resource, k.driver), nil
}

// uses reads the kubelet's list. It names a device once for each NUMA node that is
// near it, and pods of which the containers have ended: who reads the report knows
// which pods these are.
func uses(list []*podresources.PodResources, inv *Inventory, resource, driver string) []Use {
	byID := map[string]int{}
	whole := map[string]bool{}
	for _, g := range inv.GPUs {
		byID[g.UUID], whole[g.UUID] = g.Index, true
		for _, id := range g.MIGDevices {
			byID[id] = g.Index
		}
	}
	// NVIDIA's DRA driver names a GPU by its minor number: gpu-0, gpu-0-mig-....
	for _, g := range inv.GPUs {
		byID[draName(g.Minor)], whole[draName(g.Minor)] = g.Index, true
	}
	var out []Use
	for _, pod := range list {
		u := Use{Namespace: pod.GetNamespace(), Name: pod.GetName()}
		for _, id := range deviceIDs(pod, resource, driver) {
			// A GPU shared by time slices is handed out as GPU-uuid::3.
			name, _, part := strings.Cut(id, "::")
			if gpu, _, mig := strings.Cut(name, "-mig-"); mig {
				name, part = gpu, true
			}
			index, known := byID[name]
			if !known {
				u.Strange = append(u.Strange, id)
				continue
			}
			u.Shared = u.Shared || part || !whole[name]
			u.GPUs = append(u.GPUs, index)
		}
		slices.Sort(u.GPUs)
		u.GPUs = slices.Compact(u.GPUs)
		if len(u.GPUs)+len(u.Strange) > 0 {
			out = append(out, u)
		}
	}
	slices.SortFunc(out, func(a, b Use) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func draName(minor int) string { return fmt.Sprintf("gpu-%d", minor) }

// deviceIDs lists the pod's devices of the resources, each once.
func deviceIDs(pod *podresources.PodResources, resource, driver string) []string {
	var ids []string
	for _, c := range pod.GetContainers() {
		for _, d := range c.GetDevices() {
			if strings.HasPrefix(d.GetResourceName(), resource) {
				ids = append(ids, d.GetDeviceIds()...)
			}
		}
		for _, claim := range c.GetDynamicResources() {
			for _, r := range claim.GetClaimResources() {
				if r.GetDriverName() == driver {
					ids = append(ids, r.GetDeviceName())
				}
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
