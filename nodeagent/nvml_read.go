//go:build cgo

package nodeagent

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// reading is one Read.
type reading struct {
	*NVML
	inv     *Inventory
	devices []nvml.Device // by place in inv.GPUs; nil: it does not answer
}

func (n *NVML) read() (*Inventory, nvml.Return) {
	r := &reading{NVML: n, inv: &Inventory{}}
	if !n.any("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount") || !n.any("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex") {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	if n.has("nvmlSystemGetDriverVersion") {
		if version, ret := n.lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
			r.inv.Driver = version
		}
	}
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for i := range count {
		r.gpu(i)
	}
	if !n.has("nvmlDeviceGetNvLinkRemoteDeviceType") {
		guessSwitches(r.inv.GPUs)
	}
	r.inv.Links = pairLinks(r.inv.GPUs, r.path, r.reachable)
	r.xid()
	return r.inv, nvml.SUCCESS
}

// guessSwitches takes links that end at none of the node's GPUs for links into
// switches: drivers before 450 do not tell.
func guessSwitches(gpus []GPU) {
	for i := range gpus {
		for j := range gpus[i].NVLinks {
			l := &gpus[i].NVLinks[j]
			l.Switch = l.Up && !slices.ContainsFunc(gpus, func(g GPU) bool { return g.Bus == l.Peer })
		}
	}
}

func (r *reading) gap(format string, args ...any) {
	const atMost = 8
	if len(r.inv.Gaps) < atMost {
		r.inv.Gaps = append(r.inv.Gaps, fmt.Sprintf(format, args...))
	}
}

// ask makes one call if the library has the function. What it does not tell, for
// lack of the function or of support, is no gap.
func (r *reading) ask(symbol string, index int, call func() nvml.Return) bool {
	if !r.has(symbol) {
		return false
	}
	switch ret := call(); ret {
	case nvml.SUCCESS:
		return true
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH:
	case nvml.ERROR_GPU_IS_LOST:
		r.inv.GPUs[len(r.inv.GPUs)-1].Health.Lost = true
	default:
		r.gap("GPU %d: %s: %s", index, symbol, name(ret))
	}
	return false
}

// gpu reads one GPU. One that does not tell its UUID cannot be matched with what
// the kubelet says, and is in the inventory as lost.
func (r *reading) gpu(index int) {
	r.inv.GPUs = append(r.inv.GPUs, GPU{Index: index, Minor: index, NUMA: -1, Figures: unknownFigures})
	g := &r.inv.GPUs[len(r.inv.GPUs)-1]
	device, ret := r.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		r.gap("GPU %d: no handle: %s", index, name(ret))
		device = nil
	}
	if device == nil || !r.ask("nvmlDeviceGetUUID", index, func() (ret nvml.Return) { g.UUID, ret = device.GetUUID(); return ret }) {
		r.lose(g)
		return
	}
	r.devices = append(r.devices, device)
	r.ask("nvmlDeviceGetName", index, func() (ret nvml.Return) { g.Model, ret = device.GetName(); return ret })
	r.ask("nvmlDeviceGetMinorNumber", index, func() nvml.Return {
		minor, ret := device.GetMinorNumber()
		if ret == nvml.SUCCESS {
			g.Minor = minor
		}
		return ret
	})
	r.ask("nvmlDeviceGetMemoryInfo", index, func() nvml.Return {
		memory, ret := device.GetMemoryInfo()
		if ret == nvml.SUCCESS {
			g.Memory, g.Figures.MemoryUsed = memory.Total, float64(memory.Used)
		}
		return ret
	})
	r.pci(g, device)
	r.mig(g, device)
	r.links(g, device)
	r.fabric(g, device)
	r.health(g, device)
	r.figures(g, device)
	if g.Health.Lost {
		r.devices[len(r.devices)-1] = nil
		r.devices = r.devices[:len(r.devices)-1]
		r.lose(g)
		return
	}
	r.last[index] = *g
}

// lose keeps of a GPU that does not answer what it was when it did.
func (r *reading) lose(g *GPU) {
	r.devices = append(r.devices, nil)
	index := g.Index
	if before, ok := r.last[index]; ok {
		*g = before
		g.NVLinks, g.Figures = nil, unknownFigures
	}
	g.Health.Lost = true
}

func (r *reading) pci(g *GPU, device nvml.Device) {
	if r.any("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo") {
		pci, ret := device.GetPciInfo()
		if ret == nvml.SUCCESS {
			g.Bus = busName(pci)
			g.NUMA = r.numa(g.Bus)
		} else {
			r.gap("GPU %d: no PCI bus id: %s", g.Index, name(ret))
		}
	}
	generation, width := 0, 0
	r.ask("nvmlDeviceGetMaxPcieLinkGeneration", g.Index, func() (ret nvml.Return) { generation, ret = device.GetMaxPcieLinkGeneration(); return ret })
	r.ask("nvmlDeviceGetMaxPcieLinkWidth", g.Index, func() (ret nvml.Return) { width, ret = device.GetMaxPcieLinkWidth(); return ret })
	g.PCIe = topology.PCIeLink(generation, width)
}

// busName writes a PCI bus id as sysfs does.
func busName(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// numa reads the NUMA node of a PCI device. The kernel says -1 where it does not know.
func (r *reading) numa(bus string) int {
	text, err := os.ReadFile(filepath.Join(r.sysfs, "bus/pci/devices", bus, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || node < 0 {
		return -1
	}
	return node
}

func (r *reading) mig(g *GPU, device nvml.Device) {
	r.ask("nvmlDeviceGetMigMode", g.Index, func() nvml.Return {
		mode, _, ret := device.GetMigMode()
		g.MIG = ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
		return ret
	})
	if !g.MIG {
		return
	}
	count := 0
	r.ask("nvmlDeviceGetMaxMigDeviceCount", g.Index, func() (ret nvml.Return) { count, ret = device.GetMaxMigDeviceCount(); return ret })
	for i := range count {
		r.ask("nvmlDeviceGetMigDeviceHandleByIndex", g.Index, func() nvml.Return {
			part, ret := device.GetMigDeviceHandleByIndex(i)
			if ret != nvml.SUCCESS {
				return ret
			}
			uuid, ret := part.GetUUID()
			if ret == nvml.SUCCESS {
				g.MIGDevices = append(g.MIGDevices, uuid)
			}
			return ret
		})
	}
}

// links reads the ports. They come in ascending order, and the GPU says "not
// supported" for those that it does not have.
func (r *reading) links(g *GPU, device nvml.Device) {
	if !r.has("nvmlDeviceGetNvLinkState") {
		return
	}
	for port := range nvml.NVLINK_MAX_LINKS {
		state, ret := device.GetNvLinkState(port)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		l := NVLink{Port: port, Up: ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED}
		if ret != nvml.SUCCESS {
			r.gap("GPU %d: NVLink %d: %s", g.Index, port, name(ret))
		}
		if l.Up {
			r.link(g, device, &l)
		}
		g.NVLinks = append(g.NVLinks, l)
	}
}

func (r *reading) link(g *GPU, device nvml.Device, l *NVLink) {
	r.ask("nvmlDeviceGetNvLinkVersion", g.Index, func() nvml.Return {
		version, ret := device.GetNvLinkVersion(l.Port)
		l.Version = int(version)
		return ret
	})
	if r.any("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo") {
		if pci, ret := device.GetNvLinkRemotePciInfo(l.Port); ret == nvml.SUCCESS {
			l.Peer = busName(pci)
		}
	}
	r.ask("nvmlDeviceGetNvLinkRemoteDeviceType", g.Index, func() nvml.Return {
		kind, ret := device.GetNvLinkRemoteDeviceType(l.Port)
		l.Switch = ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
		return ret
	})
	l.MBps = r.speed(device, l.Port)
}

// speed is what the driver reports for the port, else for all of the GPU's ports.
func (r *reading) speed(device nvml.Device, port int) int {
	if !r.has("nvmlDeviceGetFieldValues") {
		return 0
	}
	values := []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_NVLINK_GET_SPEED, ScopeId: uint32(port)},
		{FieldId: nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON},
	}
	if device.GetFieldValues(values) != nvml.SUCCESS {
		return 0
	}
	for _, v := range values {
		if n, ok := number(v); ok && n > 0 && n < 1e7 {
			return int(n)
		}
	}
	return 0
}

// number reads the value of a field, if it has one.
func number(v nvml.FieldValue) (float64, bool) {
	if nvml.Return(v.NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	bits := binary.NativeEndian.Uint64(v.Value[:])
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		return math.Float64frombits(bits), true
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(binary.NativeEndian.Uint32(v.Value[:4])), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(bits), true
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(bits)), true
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(binary.NativeEndian.Uint32(v.Value[:4]))), true
	}
	return 0, false
}

// paths are NVML's common ancestors.
var paths = map[nvml.GpuTopologyLevel]topology.Path{
	nvml.TOPOLOGY_INTERNAL: topology.PathBoard, nvml.TOPOLOGY_SINGLE: topology.PathSingleSwitch,
	nvml.TOPOLOGY_MULTIPLE: topology.PathMultiSwitch, nvml.TOPOLOGY_HOSTBRIDGE: topology.PathHostBridge,
	nvml.TOPOLOGY_NODE: topology.PathNode, nvml.TOPOLOGY_SYSTEM: topology.PathSystem,
}

func (r *reading) path(i, j int) topology.Path {
	a, b := r.devices[i], r.devices[j]
	if a == nil || b == nil || !r.has("nvmlDeviceGetTopologyCommonAncestor") {
		return topology.PathUnknown
	}
	level, ret := a.GetTopologyCommonAncestor(b)
	if ret != nvml.SUCCESS {
		return topology.PathUnknown
	}
	return paths[level]
}

// reachable asks whether the two reach each other by NVLink. Where the driver does
// not say so, they do not: links that are not there are worse than links unused.
func (r *reading) reachable(i, j int) bool {
	a, b := r.devices[i], r.devices[j]
	if a == nil || b == nil || !r.has("nvmlDeviceGetP2PStatus") {
		return false
	}
	status, ret := a.GetP2PStatus(b, nvml.P2P_CAPS_INDEX_NVLINK)
	if ret != nvml.SUCCESS {
		r.gap("GPUs %d and %d: NVLink peer access: %s", r.inv.GPUs[i].Index, r.inv.GPUs[j].Index, name(ret))
	}
	return ret == nvml.SUCCESS && status == nvml.P2P_STATUS_OK
}

// fabric reads the multi-node NVLink fabric. It says something only when the
// GPU's registration is completed, and was a success.
func (r *reading) fabric(g *GPU, device nvml.Device) {
	r.ask("nvmlDeviceGetGpuFabricInfoV", g.Index, func() nvml.Return {
		info, ret := device.GetGpuFabricInfoV().V2()
		if ret == nvml.SUCCESS && info.State == nvml.GPU_FABRIC_STATE_COMPLETED && nvml.Return(info.Status) == nvml.SUCCESS && info.ClusterUuid != [16]uint8{} {
			g.Fabric = &Fabric{Cluster: uuid(info.ClusterUuid), Clique: info.CliqueId}
		}
		return ret
	})
}

func uuid(b [16]uint8) string {
	s := hex.EncodeToString(b[:])
	return strings.Join([]string{s[:8], s[8:12], s[12:16], s[16:20], s[20:]}, "-")
}
