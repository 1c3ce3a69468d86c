package nodeagent

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubelet is a kubelet's pod-resources API on a real socket.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	list []*podresources.PodResources
	err  error
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: k.list}, k.err
}

func (k *kubelet) serve(t testing.TB) *Kubelet {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client, err := NewKubelet(socket, "nvidia.com/gpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// pod has one container with devices: resource, then ids.
func pod(name string, devices ...[]string) *podresources.PodResources {
	c := &podresources.ContainerResources{Name: "main"}
	for _, d := range devices {
		c.Devices = append(c.Devices, &podresources.ContainerDevices{ResourceName: d[0], DeviceIds: d[1:]})
	}
	return &podresources.PodResources{Namespace: "ns", Name: name, Containers: []*podresources.ContainerResources{c}}
}

func fourGPUs() *Inventory {
	inv := &Inventory{}
	for i, id := range []string{"GPU-a", "GPU-b", "GPU-c", "GPU-d"} {
		inv.GPUs = append(inv.GPUs, GPU{Index: i, Minor: i, UUID: id})
	}
	inv.GPUs[3].MIGDevices = []string{"MIG-1", "MIG-2"}
	return inv
}

func TestUses(t *testing.T) {
	k := &kubelet{list: []*podresources.PodResources{
		// The same device is named once for each NUMA node.
		pod("numa", []string{"nvidia.com/gpu", "GPU-b"}, []string{"nvidia.com/gpu", "GPU-b"}, []string{"nvidia.com/gpu", "GPU-a"}),
		pod("replica", []string{"nvidia.com/gpu.shared", "GPU-c::3"}),
		pod("mig", []string{"nvidia.com/mig-1g.10gb", "MIG-2"}),
		pod("none"),
		pod("nic", []string{"rdma/hca", "mlx5_0"}),
		pod("strange", []string{"nvidia.com/gpu", "GPU-z"}),
		{Namespace: "ns", Name: "dra", Containers: []*podresources.ContainerResources{{DynamicResources: []*podresources.DynamicResource{{
			ClaimResources: []*podresources.ClaimResource{
				{DriverName: "gpu.nvidia.com", DeviceName: "gpu-2"},
				{DriverName: "gpu.nvidia.com", DeviceName: "gpu-3-mig-9-4-4"},
				{DriverName: "other", DeviceName: "gpu-0"},
			},
		}}}}},
	}}
	got, err := k.serve(t).Uses(t.Context(), fourGPUs())
	if err != nil {
		t.Fatal(err)
	}
	want := []Use{
		{Namespace: "ns", Name: "dra", GPUs: []int{2, 3}, Shared: true},
		{Namespace: "ns", Name: "mig", GPUs: []int{3}, Shared: true},
		{Namespace: "ns", Name: "numa", GPUs: []int{0, 1}},
		{Namespace: "ns", Name: "replica", GPUs: []int{2}, Shared: true},
		{Namespace: "ns", Name: "strange", Strange: []string{"GPU-z"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestKubeletThatDoesNotAnswer(t *testing.T) {
	k := &kubelet{err: errors.New("not now")}
	if _, err := k.serve(t).Uses(t.Context(), fourGPUs()); err == nil || !strings.Contains(err.Error(), "not now") {
		t.Errorf("got %v", err)
	}
	gone, err := NewKubelet(filepath.Join(t.TempDir(), "kubelet.sock"), "nvidia.com/gpu")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gone.Close() }()
	if _, err := gone.Uses(t.Context(), fourGPUs()); err == nil {
		t.Error("no error without a kubelet")
	}
}

// FuzzUses: whatever the kubelet names, each GPU of a use is one of the node's.
func FuzzUses(f *testing.F) {
	f.Add("nvidia.com/gpu", "GPU-a", "gpu.nvidia.com", "gpu-1")
	f.Add("nvidia.com/gpu", "GPU-a::x::", "gpu.nvidia.com", "gpu--mig-")
	f.Add("", "::", "", "-mig-")
	f.Fuzz(func(t *testing.T, resource, id, driver, device string) {
		list := []*podresources.PodResources{nil, pod("p", []string{resource, id, id}), {Containers: []*podresources.ContainerResources{nil, {
			DynamicResources: []*podresources.DynamicResource{nil, {ClaimResources: []*podresources.ClaimResource{nil, {DriverName: driver, DeviceName: device}}}},
		}}}}
		for _, u := range uses(list, fourGPUs(), "nvidia.com/", "gpu.nvidia.com") {
			for _, i := range u.GPUs {
				if i < 0 || i > 3 {
					t.Errorf("%+v", u)
				}
			}
			if len(u.GPUs)+len(u.Strange) == 0 {
				t.Errorf("%+v", u)
			}
		}
	})
}
