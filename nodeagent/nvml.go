//go:build cgo

package nodeagent

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// NVML reads the GPUs by NVIDIA's management library, libnvidia-ml. It is the only
// part that knows go-nvml.
//
// A function that the library lacks must never be called: go-nvml binds lazily, and
// the linker ends the process. So every call asks for its symbol first.
type NVML struct {
	lib   nvml.Interface
	sysfs string
	// keep holds the library in memory once it was loaded: calls are bound to its
	// address for good, and would go astray if it were loaded anew elsewhere.
	keep *dl.DynamicLibrary
	kept bool

	mu      sync.Mutex
	up      bool
	symbols map[string]bool
	xids    map[string]int // by UUID: the last critical one
	events  nvml.EventSet
	watched map[nvml.Device]string // UUIDs by handle, of GPUs of which events are registered
	last    map[int]GPU            // by index, as it last answered
}

// NewNVML makes a reader. library is the path of libnvidia-ml, "" for the system's;
// sysfs is where /sys is.
func NewNVML(library, sysfs string) *NVML {
	var options []nvml.LibraryOption
	if library != "" {
		options = append(options, nvml.WithLibraryPath(library))
	}
	return &NVML{
		lib: nvml.New(options...), sysfs: sysfs, keep: dl.New(cmp.Or(library, "libnvidia-ml.so.1"), dl.RTLD_LAZY|dl.RTLD_GLOBAL),
		symbols: map[string]bool{}, xids: map[string]int{}, watched: map[nvml.Device]string{}, last: map[int]GPU{},
	}
}

// Close gives the library back.
func (n *NVML) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down()
}

func (n *NVML) down() {
	if !n.up {
		return
	}
	if n.events != nil && n.has("nvmlEventSetFree") {
		_ = n.events.Free()
	}
	n.events = nil
	clear(n.watched)
	if n.has("nvmlShutdown") {
		_ = n.lib.Shutdown()
	}
	n.up = false
	clear(n.symbols)
}

// has tells whether the library, which is loaded, has the function.
func (n *NVML) has(symbol string) bool {
	known, ok := n.symbols[symbol]
	if !ok {
		known = n.lib.Extensions().LookupSymbol(symbol) == nil
		n.symbols[symbol] = known
	}
	return known
}

// any tells whether the library has one of the versions of a function.
func (n *NVML) any(symbols ...string) bool { return slices.ContainsFunc(symbols, n.has) }

// Read takes stock. A node without a driver or without GPUs has an inventory that
// says so; the error is for a driver that is there and does not answer.
func (n *NVML) Read() (*Inventory, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.up {
		if ret := n.start(); ret != nvml.SUCCESS {
			return n.absent(ret)
		}
	}
	inv, ret := n.read()
	if ret != nvml.SUCCESS {
		// The driver may have been replaced below us: begin anew next time.
		n.down()
		return nil, fmt.Errorf("reading the GPUs: %s", name(ret))
	}
	return inv, nil
}

func (n *NVML) start() nvml.Return {
	if !n.kept {
		if n.keep.Open() != nil {
			return nvml.ERROR_LIBRARY_NOT_FOUND
		}
		n.kept = true
	}
	ret := n.lib.Init()
	n.up = ret == nvml.SUCCESS
	return ret
}

func (n *NVML) absent(ret nvml.Return) (*Inventory, error) {
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return &Inventory{Absent: "libnvidia-ml is not there"}, nil
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return &Inventory{Absent: "the NVIDIA driver is not loaded"}, nil
	case nvml.ERROR_NO_PERMISSION:
		return nil, fmt.Errorf("starting NVML: no permission")
	}
	return nil, fmt.Errorf("starting NVML: %s", name(ret))
}

// name is not nvml.ErrorString, which is a call into the library.
func name(ret nvml.Return) string { return fmt.Sprintf("NVML error %d", int(ret)) }
