package lab

import (
	_ "embed"
	"fmt"
	"net/url"
	"path"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed scheduler.yaml
var plainSchedulerConfig []byte

// SchedulerPatch changes a KubeSchedulerConfiguration. Zero fields change nothing.
type SchedulerPatch struct {
	// Kubeconfig replaces clientConnection.kubeconfig, a path.
	Kubeconfig string
	// QPS and Burst replace clientConnection.qps and .burst.
	QPS   float32
	Burst int32
	// LeaderElect replaces leaderElection.leaderElect.
	LeaderElect *bool
	// ExtenderURL, scheme://host:port, replaces these parts of the urlPrefix of
	// every extender and keeps the path. enableHTTPS follows the scheme, and for
	// plain HTTP the extender's tlsConfig goes.
	ExtenderURL string
	// Extender, if not nil, edits each extender's entry at last, such as its
	// tlsConfig or timeouts; i counts from 0.
	Extender func(i int, entry map[string]any)
}

// PatchSchedulerConfig returns the KubeSchedulerConfiguration with the changes
// made. Everything else is kept, also fields this package does not know, but
// comments are lost. It fails on anything that is not a KubeSchedulerConfiguration,
// and if ExtenderURL has nothing to replace.
func PatchSchedulerConfig(config []byte, patch SchedulerPatch) ([]byte, error) {
	var doc map[string]any
	if err := yaml.UnmarshalStrict(config, &doc); err != nil {
		return nil, fmt.Errorf("decoding the scheduler configuration: %w", err)
	}
	if kind := doc["kind"]; kind != "KubeSchedulerConfiguration" {
		return nil, fmt.Errorf("decoding the scheduler configuration: kind is %v, not KubeSchedulerConfiguration", kind)
	}
	if err := patch.connection(doc); err != nil {
		return nil, err
	}
	if err := patch.extenders(doc); err != nil {
		return nil, err
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encoding the scheduler configuration: %w", err)
	}
	return out, nil
}

// connection applies what concerns the scheduler's own client.
func (p SchedulerPatch) connection(doc map[string]any) error {
	connection, err := section(doc, "clientConnection")
	if err != nil {
		return err
	}
	if p.Kubeconfig != "" {
		connection["kubeconfig"] = p.Kubeconfig
	}
	if p.QPS != 0 {
		connection["qps"] = p.QPS
	}
	if p.Burst != 0 {
		connection["burst"] = p.Burst
	}
	election, err := section(doc, "leaderElection")
	if err != nil {
		return err
	}
	if p.LeaderElect != nil {
		election["leaderElect"] = *p.LeaderElect
	}
	return nil
}

func (p SchedulerPatch) extenders(doc map[string]any) error {
	entries, _ := doc["extenders"].([]any)
	if len(entries) == 0 && p.ExtenderURL != "" {
		return fmt.Errorf("setting the extender's URL to %s: the scheduler configuration has no extenders", p.ExtenderURL)
	}
	for i, raw := range entries {
		entry, ok := raw.(map[string]any)
		if !ok {
			return fmt.Errorf("decoding the scheduler configuration: extenders[%d] is %T, not a mapping", i, raw)
		}
		if p.ExtenderURL != "" {
			if err := redirect(entry, p.ExtenderURL); err != nil {
				return fmt.Errorf("setting the URL of extenders[%d]: %w", i, err)
			}
		}
		if p.Extender != nil {
			p.Extender(i, entry)
		}
	}
	return nil
}

// redirect points an extender's entry at another server.
func redirect(entry map[string]any, base string) error {
	target, err := url.Parse(base)
	if err != nil {
		return err
	}
	if target.Host == "" || (target.Scheme != "http" && target.Scheme != "https") {
		return fmt.Errorf("%q is not a URL of the form scheme://host:port", base)
	}
	prefix, _ := entry["urlPrefix"].(string)
	old, err := url.Parse(prefix)
	if err != nil {
		return err
	}
	target.Path = path.Join("/", target.Path, old.Path)
	entry["urlPrefix"] = strings.TrimSuffix(target.String(), "/")
	https := target.Scheme == "https"
	entry["enableHTTPS"] = https
	if !https {
		delete(entry, "tlsConfig")
	}
	return nil
}

// section returns a mapping inside doc, made if absent.
func section(doc map[string]any, key string) (map[string]any, error) {
	if doc[key] == nil {
		doc[key] = map[string]any{}
	}
	found, ok := doc[key].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("decoding the scheduler configuration: %s is %T, not a mapping", key, doc[key])
	}
	return found, nil
}
