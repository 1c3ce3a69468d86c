package v1alpha1

// PodPlacement is what the annotation Placement says, as JSON.
type PodPlacement struct {
	// Level and Domain name the narrowest domain that holds the pod's gang.
	Level  string `json:"level,omitempty"`
	Domain string `json:"domain,omitempty"`
	// GPUs are the sets of which the pod may get one; at most MaxPlacementSets are
	// named.
	GPUs [][]int `json:"gpus,omitempty"`
	// Ring is left out for pods with one GPU.
	Ring *PlacementRing `json:"ring,omitempty"`
}

// PlacementRing is the bandwidth of the best ring over the sets, in GB/s and one
// direction.
type PlacementRing struct {
	Worst    float64 `json:"worst"`
	Expected float64 `json:"expected"`
	Best     float64 `json:"best"`
	// Share is that of Expected in the best that an empty node of the kind has.
	Share float64 `json:"share"`
}

// MaxPlacementSets is how many sets a PodPlacement names.
const MaxPlacementSets = 8
