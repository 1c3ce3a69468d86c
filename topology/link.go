package topology

import (
	"fmt"
	"strings"
)

// Path is how far apart two GPUs are on PCIe, from far to near: NVML's common
// ancestor, and the letters of `nvidia-smi topo -m`.
type Path uint8

// The paths. PathUnknown is what a matrix leaves out where it shows NVLink.
const (
	PathUnknown      Path = iota
	PathSystem            // SYS: from one socket to another
	PathNode              // NODE: between host bridges of one NUMA node
	PathHostBridge        // PHB: through one host bridge
	PathMultiSwitch       // PXB: through several PCIe switches
	PathSingleSwitch      // PIX: through one PCIe switch
	PathBoard             // PSB: on one board
)

var pathNames = [...]string{"Unknown", "SYS", "NODE", "PHB", "PXB", "PIX", "PSB"}

func (p Path) String() string { return pathNames[p] }

// ParsePath is the inverse of String; any other word is an error that names it.
func ParsePath(word string) (Path, error) {
	for p, name := range pathNames {
		if name == word {
			return Path(p), nil
		}
	}
	return PathUnknown, fmt.Errorf("unknown path %.20q", word)
}

// share is about how much of its PCIe bandwidth a GPU has on the path. The figures
// only put paths in order; they are not measured.
var share = [...]float64{0.5, 0.5, 0.7, 0.85, 0.95, 1, 1}

// Link is the connection of two GPUs of one node.
type Link struct {
	Path Path
	// NVLinks is how many NVLinks lie between the two; with Switched, how many of
	// them each has into the switches.
	NVLinks  int
	Switched bool
	// GBps is what the connection carries in one direction, in GB/s: all NVLinks
	// together, or PCIe where there are none.
	GBps float64
}

// Tier is what users may require of the GPUs of a pod, from weak to strong.
type Tier uint8

// The tiers.
const (
	TierAny Tier = iota
	TierPCIe
	TierNVLink
	TierNVSwitch
)

// Tier gives the strongest tier that the connection is of.
func (l Link) Tier() Tier {
	switch {
	case l.NVLinks > 0 && l.Switched:
		return TierNVSwitch
	case l.NVLinks > 0:
		return TierNVLink
	case l.Path >= PathHostBridge:
		return TierPCIe
	}
	return TierAny
}

// Requirement is what a pod asks of the connection of its GPUs.
type Requirement struct {
	// Tier: there is a ring over the GPUs of which every link is of the tier, or a
	// stronger one.
	Tier Tier
	// OneNUMA: all are on the same NUMA node.
	OneNUMA bool
}

var requirements = map[string]Requirement{
	"pcie": {Tier: TierPCIe}, "nvlink": {Tier: TierNVLink}, "nvswitch": {Tier: TierNVSwitch}, "numa": {OneNUMA: true},
}

// ParseRequirement reads the value of an annotation. The error names it.
func ParseRequirement(text string) (Requirement, error) {
	r, ok := requirements[text]
	if !ok {
		return Requirement{}, fmt.Errorf("%.80q: want nvlink, nvswitch, pcie or numa", text)
	}
	return r, nil
}

func (r Requirement) String() string {
	for name, of := range requirements {
		if r == of {
			return name
		}
	}
	return ""
}

// NVLinkSpec is what NVLink is on one model of GPU.
type NVLinkSpec struct {
	Links int     // of one GPU
	GBps  float64 // of one link, in one direction
}

// nvlinkSpecs is by a part of NVML's name of the model; the first that fits counts.
// Source: NVIDIA's data sheets, which give both directions of all links together,
// less the overhead that NVML takes off its link speed.
var nvlinkSpecs = []struct {
	model string
	NVLinkSpec
}{
	{"GB200", NVLinkSpec{18, 53.1}},
	{"GB300", NVLinkSpec{18, 53.1}},
	{"B200", NVLinkSpec{18, 53.1}},
	{"B300", NVLinkSpec{18, 53.1}},
	{"H100", NVLinkSpec{18, 26.6}},
	{"H200", NVLinkSpec{18, 26.6}},
	{"H800", NVLinkSpec{8, 26.6}},
	{"GH200", NVLinkSpec{18, 26.6}},
	{"A100", NVLinkSpec{12, 25}},
	{"A800", NVLinkSpec{8, 25}},
	{"V100", NVLinkSpec{6, 25.8}},
	{"P100", NVLinkSpec{4, 20}},
	{"A6000", NVLinkSpec{4, 14}},
	{"A5000", NVLinkSpec{4, 14}},
	{"A40", NVLinkSpec{4, 14}},
	{"3090", NVLinkSpec{4, 14}},
}

// defaultNVLink stands in for models that are not known: the most links that any
// has, at the speed that most have.
var defaultNVLink = NVLinkSpec{18, 25}

// NVLinkOf gives what NVLink is on the model, as NVML names it ("NVIDIA H100 80GB
// HBM3"). Speeds that a node reports are to be trusted over it.
func NVLinkOf(model string) NVLinkSpec {
	for _, spec := range nvlinkSpecs {
		if strings.Contains(model, spec.model) {
			return spec.NVLinkSpec
		}
	}
	return defaultNVLink
}

// defaultPCIe is the bandwidth of PCIe 3.0 x16 in one direction, in GB/s, for nodes
// that do not say what they have.
const defaultPCIe = 15.76

// PCIeLink is the bandwidth of a PCIe link in one direction, in GB/s: lanes times
// the rate of the generation, less its encoding. Unknown ones (0) count as 3.0 x16.
func PCIeLink(generation, width int) float64 {
	rates := [...]float64{0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563, 15.125}
	if generation < 1 || generation >= len(rates) || width < 1 || width > 32 {
		return defaultPCIe
	}
	return rates[generation] * float64(width)
}
