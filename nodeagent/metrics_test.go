package nodeagent

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// machineFiles is a sysfs with one Ethernet device, one bridge and an InfiniBand port.
func machineFiles(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{
		"class/net/eth0/device/vendor":                            "0x15b3\n",
		"class/net/eth0/statistics/tx_bytes":                      "1000\n",
		"class/net/eth0/statistics/rx_bytes":                      "2000\n",
		"class/net/br0/statistics/tx_bytes":                       "5\n",
		"class/net/br0/statistics/rx_bytes":                       "5\n",
		"class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "10\n",
		"class/infiniband/mlx5_0/ports/1/counters/port_rcv_data":  "20\n",
		"class/infiniband/mlx5_1/ports/1/counters/port_xmit_data": "garbage\n",
		"class/infiniband/mlx5_1/ports/1/counters/port_rcv_data":  "20\n",
	} {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestReadNICs(t *testing.T) {
	want := []NIC{{"eth0", 1000, 2000}, {"mlx5_0:1", 40, 80}}
	if got := ReadNICs(machineFiles(t)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := ReadNICs(t.TempDir()); len(got) != 0 {
		t.Errorf("without devices: %+v", got)
	}
}

func TestMetricsJoinWithOthers(t *testing.T) {
	root := machineFiles(t)
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics("n1", func() []NIC { return ReadNICs(root) }, reg)
	inv := fourGPUs()
	for i := range inv.GPUs {
		inv.GPUs[i].Figures = unknownFigures
		inv.GPUs[i].Model = "NVIDIA H100 80GB HBM3"
	}
	inv.GPUs[1].Figures.Utilisation = 0.75
	inv.GPUs[2].Health.XID = 79
	m.polled(poll{inventory: inv, uses: []Use{{Namespace: "ns", Name: "p", GPUs: []int{1}}}}, time.Millisecond)
	m.published(true, nil)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	want := `
# HELP lockstep_gpu_utilisation_ratio Share of the time in which the GPU ran something, 0 to 1. Which GPUs idle while others wait for some?
# TYPE lockstep_gpu_utilisation_ratio gauge
lockstep_gpu_utilisation_ratio{UUID="GPU-b",gpu="1",model="NVIDIA H100 80GB HBM3",node="n1"} 0.75
# HELP lockstep_gpu_used 1 for each GPU that the pod holds. Who uses which GPU?
# TYPE lockstep_gpu_used gauge
lockstep_gpu_used{UUID="GPU-b",gpu="1",namespace="ns",node="n1",pod="p"} 1
# HELP lockstep_nic_sent_bytes_total Data sent by the network device or InfiniBand port. Do gangs that span nodes saturate the network?
# TYPE lockstep_nic_sent_bytes_total counter
lockstep_nic_sent_bytes_total{device="eth0",node="n1"} 1000
lockstep_nic_sent_bytes_total{device="mlx5_0:1",node="n1"} 40
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "lockstep_gpu_utilisation_ratio", used, nicSent); err != nil {
		t.Error(err)
	}
	healthy := `
# HELP lockstep_gpu_healthy 1 if the GPU may be given to pods, else 0; the NodeTopology says why. Which GPUs need repair?
# TYPE lockstep_gpu_healthy gauge
lockstep_gpu_healthy{UUID="GPU-a",gpu="0",model="NVIDIA H100 80GB HBM3",node="n1"} 1
lockstep_gpu_healthy{UUID="GPU-b",gpu="1",model="NVIDIA H100 80GB HBM3",node="n1"} 1
lockstep_gpu_healthy{UUID="GPU-c",gpu="2",model="NVIDIA H100 80GB HBM3",node="n1"} 0
lockstep_gpu_healthy{UUID="GPU-d",gpu="3",model="NVIDIA H100 80GB HBM3",node="n1"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(healthy), "lockstep_gpu_healthy"); err != nil {
		t.Error(err)
	}
}
