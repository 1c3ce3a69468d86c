package lab

import (
	"io"
)

// Options says what differs from a plain cluster. The zero value is one with
// every default, no nodes and a scheduler without extenders.
type Options struct {
	// Binaries are the programs to run; nil means those that Binaries returns.
	Binaries Paths
	// Progress receives a few lines if binaries must be built first.
	Progress io.Writer

	// LogDir is where the components' logs go, as <component>.log, so that they
	// outlive the lab. The default is the lab's folder, which Stop removes.
	LogDir string
	// Verbosity is the components' -v. The default is 1.
	Verbosity int

	// ExtraArgs are appended to the command line of a component. A flag given
	// here wins over the lab's own, except that lists add up.
	ExtraArgs map[Component][]string
	// FeatureGates go to kube-apiserver, kube-controller-manager and kube-scheduler.
	FeatureGates map[string]bool
	// RuntimeConfig switches API groups and versions on or off, such as
	// "scheduling.k8s.io/v1beta1": "true".
	RuntimeConfig map[string]string

	// SchedulerConfig is a KubeSchedulerConfiguration in YAML; the lab replaces
	// its clientConnection.kubeconfig. Other changes are PatchSchedulerConfig's.
	// The default has one plain profile, no extender and no leader election.
	SchedulerConfig []byte
	// NoScheduler leaves kube-scheduler out until StartScheduler.
	NoScheduler bool

	// Controllers are those that kube-controller-manager runs, in the syntax of
	// its flag. The default is all that are on by default.
	Controllers []string
	// ClientQPS and ClientBurst limit how fast kube-controller-manager may call
	// the API, and kube-scheduler if SchedulerConfig does not say. The defaults,
	// 5000 and 10000, are those of Kubernetes' own scheduler benchmark: no limit.
	ClientQPS   float32
	ClientBurst int32
	// NoPriorityAndFairness lets kube-apiserver serve all clients alike.
	NoPriorityAndFairness bool

	// AuditLog is the path of a file to which kube-apiserver appends one JSON line
	// per request that AuditPolicy selects; see CountAudit.
	AuditLog string
	// AuditPolicy is an audit.k8s.io/v1 Policy in YAML. The default selects the
	// writes to pods and their subresources at level Metadata.
	AuditPolicy []byte
}

const (
	defaultQPS       = 5000
	defaultBurst     = 10000
	defaultVerbosity = 1
)

func (o Options) withDefaults() Options {
	if o.Verbosity == 0 {
		o.Verbosity = defaultVerbosity
	}
	if o.ClientQPS == 0 {
		o.ClientQPS = defaultQPS
	}
	if o.ClientBurst == 0 {
		o.ClientBurst = defaultBurst
	}
	if len(o.Controllers) == 0 {
		o.Controllers = []string{"*"}
	}
	if o.SchedulerConfig == nil {
		o.SchedulerConfig = plainSchedulerConfig
	}
	if o.AuditPolicy == nil {
		o.AuditPolicy = podWritesPolicy
	}
	return o
}
