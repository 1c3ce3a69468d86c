package nodeagent

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// NIC is the traffic of one network device, in bytes since it came up.
type NIC struct {
	Device         string
	Sent, Received float64
}

// infinibandUnit is how many bytes InfiniBand's data counters count at once (IBTA
// specification, PortXmitData).
const infinibandUnit = 4

// ReadNICs reads the network devices that are hardware, and the ports of InfiniBand
// and RoCE devices, from sysfs. What cannot be read is left out.
func ReadNICs(sysfs string) []NIC {
	var out []NIC
	for _, device := range entries(filepath.Join(sysfs, "class/net")) {
		folder := filepath.Join(sysfs, "class/net", device)
		if _, err := os.Stat(filepath.Join(folder, "device")); err != nil {
			continue // virtual
		}
		out = add(out, device, filepath.Join(folder, "statistics/tx_bytes"), filepath.Join(folder, "statistics/rx_bytes"), 1)
	}
	for _, device := range entries(filepath.Join(sysfs, "class/infiniband")) {
		ports := filepath.Join(sysfs, "class/infiniband", device, "ports")
		for _, port := range entries(ports) {
			counters := filepath.Join(ports, port, "counters")
			out = add(out, device+":"+port, filepath.Join(counters, "port_xmit_data"), filepath.Join(counters, "port_rcv_data"), infinibandUnit)
		}
	}
	return out
}

func add(to []NIC, device, sent, received string, unit float64) []NIC {
	tx, okTX := counter(sent)
	rx, okRX := counter(received)
	if !okTX || !okRX {
		return to
	}
	return append(to, NIC{device, tx * unit, rx * unit})
}

func entries(folder string) []string {
	list, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func counter(path string) (float64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return float64(n), err == nil
}
