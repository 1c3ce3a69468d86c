package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeTopology is what the node agent reports of one node: its GPUs, how they are
// connected, and who uses them. It has the node's name. Only that node's agent
// writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nt
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=".status.gpuCount"
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=".status.freeCount"
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=".status.gpus[0].model"
// +kubebuilder:printcolumn:name="Clique",type=integer,JSONPath=".status.fabric.cliqueID"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Reported",type=date,JSONPath=".status.heartbeatTime"
type NodeTopology struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status NodeTopologyStatus `json:"status,omitempty"`
}

// NodeTopologyList is a list of NodeTopology.
//
// +kubebuilder:object:root=true
type NodeTopologyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeTopology `json:"items"`
}

// NodeTopologyStatus is one report.
type NodeTopologyStatus struct {
	// Generation grows with every report that differs from the one before in more
	// than its time.
	Generation int64 `json:"generation"`
	// HeartbeatTime is when the agent last found the report true. Readers do not
	// trust a report that is much older than the heartbeat interval.
	HeartbeatTime metav1.MicroTime `json:"heartbeatTime"`
	// HeartbeatSeconds is how often the agent renews the report.
	// +kubebuilder:validation:Minimum=1
	HeartbeatSeconds int32 `json:"heartbeatSeconds"`
	// DriverVersion is that of the NVIDIA driver; empty on nodes without one.
	// +optional
	DriverVersion string `json:"driverVersion,omitempty"`
	// GPUCount is the number of GPUs, FreeCount how many of them a pod can be given
	// whole: healthy, not in MIG mode, in nobody's use.
	GPUCount  int32 `json:"gpuCount"`
	FreeCount int32 `json:"freeCount"`
	// GPUs by index.
	// +listType=map
	// +listMapKey=index
	// +kubebuilder:validation:MaxItems=64
	// +optional
	GPUs []GPU `json:"gpus,omitempty"`
	// Links has one entry for each pair of GPUs, a below b.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2016
	// +optional
	Links []GPULink `json:"links,omitempty"`
	// Fabric is the multi-node NVLink fabric that the node has joined.
	// +optional
	Fabric *Fabric `json:"fabric,omitempty"`
	// NUMAPolicy is the kubelet's topology manager policy, as far as it is known.
	// +optional
	NUMAPolicy string `json:"numaPolicy,omitempty"`
	// Pods are those that hold GPUs, as the kubelet knows them. It does not tell
	// their UIDs.
	// +listType=atomic
	// +optional
	Pods []PodGPUs `json:"pods,omitempty"`
	// Conditions: Ready, and why it is not.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SingleNUMANode is the NUMAPolicy by which kubelet keeps a pod's GPUs on one NUMA node.
const SingleNUMANode = "single-numa-node"

// ConditionReady is True when the report can be planned on.
const ConditionReady = "Ready"

// GPU is one GPU of a node.
type GPU struct {
	// Index is NVML's.
	Index int32  `json:"index"`
	UUID  string `json:"uuid"`
	Model string `json:"model"`
	// MemoryBytes is the memory of the GPU.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// PCIBusID as in lspci: "0000:17:00.0".
	// +optional
	PCIBusID string `json:"pciBusID,omitempty"`
	// NUMANode is left out where it is not known.
	// +optional
	NUMANode *int32 `json:"numaNode,omitempty"`
	// MIG tells that the GPU is divided into MIG devices.
	// +optional
	MIG bool `json:"mig,omitempty"`
	// Unhealthy says what is wrong with the GPU; empty for a good one.
	// +optional
	Unhealthy string `json:"unhealthy,omitempty"`
}

// GPULink is the connection of two GPUs of one node.
type GPULink struct {
	A int32 `json:"a"`
	B int32 `json:"b"`
	// Path is the common ancestor on PCIe, in the letters of nvidia-smi topo -m.
	// +kubebuilder:validation:Enum=SYS;NODE;PHB;PXB;PIX;PSB;Unknown
	Path string `json:"path"`
	// NVLinks is how many NVLinks that are up lie between the two, or, Switched,
	// how many each has into the NVSwitches.
	// +optional
	NVLinks  int32 `json:"nvlinks,omitempty"`
	Switched bool  `json:"switched,omitempty"`
	// MBps is what they carry together in one direction, in MB/s (10⁶ bytes).
	// +optional
	MBps int64 `json:"mbps,omitempty"`
}

// Fabric is a multi-node NVLink domain.
type Fabric struct {
	ClusterUUID string `json:"clusterUUID"`
	CliqueID    uint32 `json:"cliqueID"`
}

// PodGPUs is what one pod holds.
type PodGPUs struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// GPUs are indices; a GPU that several pods share is with each of them.
	// +listType=atomic
	GPUs []int32 `json:"gpus"`
	// Shared tells that the pod has MIG devices or replicas rather than whole GPUs.
	// +optional
	Shared bool `json:"shared,omitempty"`
}
