//go:build !cgo

package nodeagent

// NVML reads the GPUs by NVIDIA's management library, which takes cgo.
type NVML struct{}

// NewNVML makes a reader that finds no GPUs.
func NewNVML(string, string) *NVML { return &NVML{} }

// Close does nothing.
func (*NVML) Close() {}

// Read says why there are no GPUs.
func (*NVML) Read() (*Inventory, error) {
	return &Inventory{Absent: "this program was built without cgo, which NVML takes"}, nil
}
