package nodeagent

import (
	"os"

	"sigs.k8s.io/yaml"
)

// NUMAPolicy reads the topology manager policy from a kubelet's configuration file,
// YAML or JSON. It gives "" where the file is not there or says nothing: kubelet's
// own default, none, leaves the choice of GPUs to the device plugin, as "" does.
func NUMAPolicy(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var config struct {
		Policy string `json:"topologyManagerPolicy"`
	}
	if yaml.Unmarshal(text, &config) != nil {
		return ""
	}
	return config.Policy
}
