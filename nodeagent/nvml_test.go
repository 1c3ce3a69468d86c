//go:build cgo

package nodeagent

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/lockstep-scheduler/lockstep/topology"
)

// libraries builds the fake libnvidia-ml, once for the process: the current one, and
// one like an old driver's.
var libraries = sync.OnceValues(func() (map[string]string, error) {
	headers, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		return nil, fmt.Errorf("finding nvml.h: %w", err)
	}
	folder, err := os.MkdirTemp("", "lockstep-fake-nvml-")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, flags := range map[string][]string{"new": nil, "old": {"-DOLD_DRIVER"}} {
		out[name] = filepath.Join(folder, name, "libnvidia-ml.so.1")
		if err := os.Mkdir(filepath.Dir(out[name]), 0o755); err != nil {
			return nil, err
		}
		args := append([]string{
			"-shared", "-fPIC", "-O1", "-Wall", "-Wl,-Bsymbolic", "-I", filepath.Join(strings.TrimSpace(string(headers)), "pkg", "nvml"),
			"-o", out[name], "testdata/fakenvml/nvml.c",
		}, flags...)
		if text, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the fake libnvidia-ml: %w\n%s", err, text)
		}
	}
	return out, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built, err := libraries(); err == nil {
		_ = os.RemoveAll(filepath.Dir(filepath.Dir(built["new"])))
	}
	os.Exit(code)
}

// fake is a machine behind the fake library.
type fake struct {
	t    testing.TB
	path string
	nvml *NVML
}

// newFake makes a machine with the facts (testdata/fakenvml/nvml.c says what there is).
func newFake(t testing.TB, library string, facts string) *fake {
	t.Helper()
	built, err := libraries()
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, path: filepath.Join(t.TempDir(), "machine"), nvml: NewNVML(built[library], "testdata/sysfs")}
	f.become(facts)
	if s, ok := t.(interface{ Setenv(key, value string) }); ok {
		s.Setenv("LOCKSTEP_FAKE_NVML", f.path)
	}
	t.Cleanup(f.nvml.Close)
	return f
}

// become changes the machine.
func (f *fake) become(facts string) {
	f.t.Helper()
	if err := os.WriteFile(f.path, []byte(facts), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) read() *Inventory {
	f.t.Helper()
	inv, err := f.nvml.Read()
	if err != nil {
		f.t.Fatal(err)
	}
	return inv
}

// facts describes the machine of a matrix: ports in the order of the peers.
func facts(t testing.TB, matrix, model string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../topology/testdata/matrices", matrix+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := topology.ParseMatrix(string(text))
	if err != nil {
		t.Fatal(err)
	}
	g, err := m.Graph(model)
	if err != nil {
		t.Fatal(err)
	}
	levels := map[topology.Path]int{
		topology.PathBoard: 0, topology.PathSingleSwitch: 10, topology.PathMultiSwitch: 20,
		topology.PathHostBridge: 30, topology.PathNode: 40, topology.PathSystem: 50, topology.PathUnknown: 50,
	}
	var b strings.Builder
	b.WriteString("driver 550.54.15\n")
	speed := int(topology.NVLinkOf(model).GBps * 1000)
	for i := range g.Len() {
		fmt.Fprintf(&b, "gpu %d GPU-%d 00000000:%02X:00.0 81920 %s\npcie %d 3 16\n", i, i, 0x10+i, model, i)
		port := 0
		for j := range g.Len() {
			if i == j {
				continue
			}
			l := g.Link(i, j)
			switch {
			case l.Switched:
				port = max(port, l.NVLinks)
			case l.NVLinks > 0:
				fmt.Fprintf(&b, "links %d %d %d %d 3 gpu %d\n", i, port, port+l.NVLinks-1, speed, j)
				port += l.NVLinks
			}
			fmt.Fprintf(&b, "path %d %d %d\n", i, j, levels[l.Path])
		}
		if l := g.Link(i, (i+1)%g.Len()); l.Switched {
			fmt.Fprintf(&b, "links %d 0 %d %d 3 switch\n", i, port-1, speed)
		}
	}
	return b.String()
}

// TestNVMLAgreesWithNvidiaSMI: what is read through go-nvml from a machine makes the
// same graph as the matrix that nvidia-smi prints there.
func TestNVMLAgreesWithNvidiaSMI(t *testing.T) {
	for matrix, model := range map[string]string{
		"a100-8x-sxm-nv12":              "NVIDIA A100-SXM4-80GB",
		"h100-8x-sxm-nv18":              "NVIDIA H100 80GB HBM3",
		"dgx1-v100-8x-hybrid-cube-mesh": "Tesla V100-SXM2-32GB",
		"pcie-8x-nv12-pairs":            "NVIDIA A100-PCIE-40GB",
		"pcie-8x-pix-pxb-2socket":       "Tesla K80",
		"gb200-4x-nvl72-tray":           "NVIDIA GB200",
		"polaris-hgx-a100-4x-nv4":       "NVIDIA A100-SXM4-40GB",
		"l40s-4x-pcie-2numa":            "NVIDIA L40S",
	} {
		t.Run(matrix, func(t *testing.T) {
			inv := newFake(t, "new", facts(t, matrix, model)).read()
			text, err := os.ReadFile(filepath.Join("../topology/testdata/matrices", matrix+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			m, err := topology.ParseMatrix(string(text))
			if err != nil {
				t.Fatal(err)
			}
			want, err := m.Graph(model)
			if err != nil {
				t.Fatal(err)
			}
			if len(inv.GPUs) != want.Len() || len(inv.Gaps) > 0 || inv.Driver != "550.54.15" {
				t.Fatalf("got %d GPUs, driver %s, gaps %v", len(inv.GPUs), inv.Driver, inv.Gaps)
			}
			for _, l := range inv.Links {
				w := want.Link(l.A, l.B)
				if w.Path == topology.PathUnknown {
					w.Path = l.Path // a matrix does not show it where there is NVLink
				}
				if l.NVLinks != w.NVLinks || l.Switched != w.Switched || l.Path != w.Path || max(l.GBps-w.GBps, w.GBps-l.GBps) > 0.25 {
					t.Errorf("GPUs %d and %d: got %+v, want %+v", l.A, l.B, l.Link, w)
				}
			}
			for _, g := range inv.GPUs {
				if g.Model != model || g.Memory != 80<<30 || g.Bus != fmt.Sprintf("0000:%02x:00.0", 0x10+g.Index) || g.Health.Unhealthy() != "" {
					t.Errorf("got %+v", g)
				}
			}
		})
	}
}

const twoLinked = `driver 550.54.15
gpu 0 GPU-0 00000000:10:00.0 81920 NVIDIA H100 80GB HBM3
gpu 1 GPU-1 00000000:11:00.0 81920 NVIDIA H100 80GB HBM3
links 0 0 17 26562 4 switch
links 1 0 17 26562 4 switch
usage 0 75 61 420000
`

func TestLinksThatDoNotWork(t *testing.T) {
	for name, c := range map[string]struct {
		fact string
		want topology.Link
	}{
		"all work":     {"", topology.Link{Path: topology.PathSystem, NVLinks: 18, Switched: true, GBps: 478.116}},
		"one is down":  {"down 0 3", topology.Link{Path: topology.PathSystem, NVLinks: 17, Switched: true, GBps: 451.554}},
		"no peer":      {"nop2p 0 1", topology.Link{Path: topology.PathSystem, GBps: topology.PCIe(topology.PathSystem, topology.PCIeLink(4, 16))}},
		"not told":     {"fail nvmlDeviceGetP2PStatus 999", topology.Link{Path: topology.PathSystem, GBps: topology.PCIe(topology.PathSystem, topology.PCIeLink(4, 16))}},
		"no speed":     {"fail nvmlDeviceGetFieldValues 999", topology.Link{Path: topology.PathSystem, NVLinks: 18, Switched: true, GBps: 18 * 26.6}},
		"no ancestors": {"fail nvmlDeviceGetTopologyCommonAncestor 999", topology.Link{NVLinks: 18, Switched: true, GBps: 478.116}},
	} {
		inv := newFake(t, "new", twoLinked+c.fact+"\n").read()
		got := inv.Links[0].Link
		if max(got.GBps-c.want.GBps, c.want.GBps-got.GBps) < 0.001 {
			got.GBps = c.want.GBps
		}
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestHealth(t *testing.T) {
	for fact, want := range map[string]string{
		"":               "",
		"xid 1 48":       "XID 48",
		"xid 1 31":       "", // of a program, not of the GPU
		"remapped 1 1 0": "",
		"remapped 1 0 1": "memory rows could not be remapped",
		"ecc 1 3":        "", // it can replace the rows
		"ecc 1 3\nfail nvmlDeviceGetRemappedRows 3": "uncorrected memory errors",
		"lost 1": "lost",
	} {
		inv := newFake(t, "new", twoLinked+fact+"\n").read()
		if len(inv.GPUs) != 2 || inv.GPUs[1].Health.Unhealthy() != want || inv.GPUs[0].Health.Unhealthy() != "" {
			t.Errorf("%q: got %q", fact, inv.GPUs[1].Health.Unhealthy())
		}
	}
}

// TestGPULostInMidRun: a GPU falls off the bus while the agent runs (XID 79). It is
// still known by its UUID, and never free again.
func TestGPULostInMidRun(t *testing.T) {
	f := newFake(t, "new", twoLinked)
	if g := f.read().GPUs[1]; g.Health.Unhealthy() != "" {
		t.Fatalf("at first: %+v", g.Health)
	}
	f.become(twoLinked + "xid 1 79\n")
	if g := f.read().GPUs[1]; g.Health.Unhealthy() != "XID 79" {
		t.Errorf("after the event: %+v", g.Health)
	}
	f.become(twoLinked + "lost 1\n")
	for range 3 {
		inv := f.read()
		g := inv.GPUs[1]
		if g.UUID != "GPU-1" || g.Health.Unhealthy() != "lost" || g.Health.XID != 79 || inv.Links[0].NVLinks != 0 {
			t.Errorf("when lost: %+v, links %+v", g, inv.Links)
		}
	}
	if status := report(poll{inventory: f.read()}); status.FreeCount != 1 || status.GPUs[1].Unhealthy != "lost" {
		t.Errorf("reported %+v", status)
	}
}

func TestMIG(t *testing.T) {
	inv := newFake(t, "new", twoLinked+"mig 1 MIG-a MIG-b\n").read()
	if g := inv.GPUs[1]; !g.MIG || !reflect.DeepEqual(g.MIGDevices, []string{"MIG-a", "MIG-b"}) || inv.GPUs[0].MIG {
		t.Errorf("got %+v", g)
	}
}

// TestFabric: it counts only when registration is completed, and was a success.
func TestFabric(t *testing.T) {
	const cluster = "0123456789abcdef0123456789abcdef"
	for fact, want := range map[string]*Fabric{
		"fabric 0 3 0 7 " + cluster:                       {"01234567-89ab-cdef-0123-456789abcdef", 7},
		"fabric 0 2 0 7 " + cluster:                       nil,
		"fabric 0 3 9 7 " + cluster:                       nil,
		"fabric 0 3 0 7 00000000000000000000000000000000": nil,
		"fail nvmlDeviceGetGpuFabricInfoV 999":            nil,
	} {
		if got := newFake(t, "new", twoLinked+fact+"\n").read().GPUs[0].Fabric; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v", fact, got)
		}
	}
}

func TestFiguresAndNUMA(t *testing.T) {
	g := newFake(t, "new", twoLinked).read().GPUs[0]
	want := Figures{Utilisation: .75, MemoryUsed: 60 << 30, Celsius: 61, Watts: 420, NVLinkTX: 4096 << 10, NVLinkRX: 2048 << 10, PCIeTX: 2000 << 10, PCIeRX: 1000 << 10}
	if g.Figures != want {
		t.Errorf("got %+v, want %+v", g.Figures, want)
	}
	if g.NUMA != 1 {
		t.Errorf("on NUMA node %d", g.NUMA)
	}
}

func TestNoDriver(t *testing.T) {
	n := NewNVML(filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), "/sys")
	defer n.Close()
	for range 2 {
		inv, err := n.Read()
		if err != nil || len(inv.GPUs) != 0 || inv.Absent == "" {
			t.Errorf("got %+v, %v", inv, err)
		}
	}
}

func TestDriverThatDoesNotAnswer(t *testing.T) {
	f := newFake(t, "new", twoLinked+"fail nvmlDeviceGetCount_v2 999\n")
	if inv, err := f.nvml.Read(); err == nil {
		t.Errorf("got %+v", inv)
	}
	f.become(twoLinked)
	if inv := f.read(); len(inv.GPUs) != 2 {
		t.Errorf("after it has come back: %+v", inv)
	}
	f.nvml.Close()
	f.become(twoLinked + "fail nvmlInit_v2 9\n")
	if inv, err := f.nvml.Read(); err != nil || inv.Absent != "the NVIDIA driver is not loaded" {
		t.Errorf("got %+v, %v", inv, err)
	}
}

// calls are the functions that the agent calls for a device.
var calls = []string{
	"nvmlSystemGetDriverVersion", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo",
	"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetMigMode",
	"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion",
	"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetFieldValues", "nvmlDeviceGetP2PStatus",
	"nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetTotalEccErrors",
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetPcieThroughput",
	"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2",
}

// FuzzNVMLFailures: any calls may fail, in any way. Both GPUs stay in the inventory,
// and a report can be made of it.
func FuzzNVMLFailures(f *testing.F) {
	for i := range calls {
		f.Add(uint32(1)<<i, uint16(999))
		f.Add(uint32(1)<<i, uint16(15))
		f.Add(uint32(1)<<i, uint16(3))
	}
	f.Fuzz(func(t *testing.T, which uint32, code uint16) {
		if code == 0 || code > 1000 {
			return
		}
		text := twoLinked + "mig 1 MIG-a\nfabric 0 3 0 7 0123456789abcdef0123456789abcdef\nxid 0 48\n"
		for i, name := range calls {
			if which>>i&1 == 1 {
				text += fmt.Sprintf("fail %s %d\n", name, code)
			}
		}
		inv := newFake(t, "new", text).read()
		if len(inv.GPUs) != 2 || len(inv.Links) != 1 {
			t.Fatalf("got %+v", inv)
		}
		if status := report(poll{inventory: inv}); status.GPUCount != 2 || len(status.Conditions) != 1 {
			t.Fatalf("reported %+v", status)
		}
	})
}

// TestOldDriver: functions that an old library lacks are never called, which would
// end the process. It runs in a process of its own, since calls stay bound to the
// first library that was loaded.
func TestOldDriver(t *testing.T) {
	if os.Getenv("LOCKSTEP_TEST_OLD_DRIVER") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOldDriver$", "-test.v")
		cmd.Env = append(os.Environ(), "LOCKSTEP_TEST_OLD_DRIVER=1")
		if text, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(text, []byte("PASS")) {
			t.Fatalf("%v\n%s", err, text)
		}
		return
	}
	inv := newFake(t, "old", twoLinked).read()
	if len(inv.GPUs) != 2 || inv.GPUs[0].Fabric != nil || inv.GPUs[0].MIG || inv.GPUs[0].Health.Remaps {
		t.Errorf("got %+v", inv)
	}
	// It does not say what is at the other end of a link, and that is no GPU.
	if l := inv.Links[0]; !l.Switched || l.NVLinks != 18 {
		t.Errorf("got %+v", l)
	}
	bridged := strings.ReplaceAll(twoLinked, "links 0 0 17 26562 4 switch", "links 0 0 3 14000 3 gpu 1")
	bridged = strings.ReplaceAll(bridged, "links 1 0 17 26562 4 switch", "links 1 0 3 14000 3 gpu 0")
	if l := newFake(t, "old", bridged).read().Links[0]; l.Switched || l.NVLinks != 4 || l.GBps != 56 {
		t.Errorf("bridged: got %+v", l)
	}
}
