package lab

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// stages are KWOK's rules: what becomes of the pods on the lab's nodes.
//
//go:embed stages.yaml
var stages []byte

// Annotations on pods, in whole seconds, that say what their "containers" do.
const (
	// AnnotationRunSeconds: the pod succeeds after it has run this long.
	AnnotationRunSeconds = "lab.lockstep.scheduler/run-seconds"
	// AnnotationFailAfterSeconds: the pod fails after it has run this long.
	AnnotationFailAfterSeconds = "lab.lockstep.scheduler/fail-after-seconds"
	// AnnotationStopSeconds: once deleted, the pod takes this long to end.
	AnnotationStopSeconds = "lab.lockstep.scheduler/stop-seconds"
)

func (l *Lab) startEtcd(ctx context.Context) error {
	client, peer := "http://"+loopback(l.port["etcd"]), "http://"+loopback(l.port["etcd-peer"])
	return l.run(ctx, Etcd, []string{
		"--name=lab", "--data-dir=" + filepath.Join(l.folder.path, "etcd"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=lab=" + peer,
		// Nothing outlives the lab, so nothing need reach a disk.
		"--unsafe-no-fsync=true", "--quota-backend-bytes=4294967296", "--log-level=warn",
	}, l.healthy(client+"/readyz"))
}

func (l *Lab) startAPIServer(ctx context.Context) error {
	c := l.credentials
	args := []string{
		"--etcd-servers=http://" + loopback(l.port["etcd"]),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", l.port["apiserver"]),
		"--tls-cert-file=" + c.serverCert, "--tls-private-key-file=" + c.serverKey, "--client-ca-file=" + c.ca,
		"--service-account-key-file=" + c.signingKey, "--service-account-signing-key-file=" + c.signingKey,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-cluster-ip-range=" + serviceCIDR, "--authorization-mode=RBAC",
		"--endpoint-reconciler-type=none", "--allow-privileged=true",
		// Without it a pod may be created before its namespace's account is.
		"--disable-admission-plugins=ServiceAccount",
		fmt.Sprintf("--v=%d", l.opts.Verbosity),
	}
	if l.opts.NoPriorityAndFairness {
		args = append(args, "--enable-priority-and-fairness=false", "--max-requests-inflight=4000", "--max-mutating-requests-inflight=2000")
	}
	if len(l.opts.RuntimeConfig) > 0 {
		args = append(args, "--runtime-config="+joined(l.opts.RuntimeConfig))
	}
	if l.opts.AuditLog != "" {
		policy := filepath.Join(l.folder.path, "audit-policy.yaml")
		if err := os.WriteFile(policy, l.opts.AuditPolicy, 0o600); err != nil {
			return fmt.Errorf("writing the audit policy: %w", err)
		}
		args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+l.opts.AuditLog, "--audit-log-mode=blocking")
	}
	return l.run(ctx, APIServer, append(args, l.featureGates()...), func(ctx context.Context) error {
		return l.client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

func (l *Lab) startControllerManager(ctx context.Context) error {
	c := l.credentials
	port := l.port["controller-manager"]
	args := append(l.serving(port, c.kubeconfig[ControllerManager]),
		"--kubeconfig="+c.kubeconfig[ControllerManager],
		"--service-account-private-key-file="+c.signingKey, "--root-ca-file="+c.ca, "--use-service-account-credentials=true",
		"--controllers="+strings.Join(l.opts.Controllers, ","), "--leader-elect=false",
		"--concurrent-job-syncs=20",
		fmt.Sprintf("--kube-api-qps=%v", l.opts.ClientQPS), fmt.Sprintf("--kube-api-burst=%d", l.opts.ClientBurst),
	)
	return l.run(ctx, ControllerManager, append(args, l.featureGates()...), l.healthy(fmt.Sprintf("https://%s/healthz", loopback(port))))
}

// StartScheduler starts kube-scheduler with a KubeSchedulerConfiguration, whose
// clientConnection.kubeconfig is replaced.
func (l *Lab) StartScheduler(ctx context.Context, config []byte) error {
	c := l.credentials
	patch := SchedulerPatch{Kubeconfig: c.kubeconfig[Scheduler]}
	if !strings.Contains(string(config), "qps:") {
		patch.QPS, patch.Burst = l.opts.ClientQPS, l.opts.ClientBurst
	}
	patched, err := PatchSchedulerConfig(config, patch)
	if err != nil {
		return err
	}
	path := filepath.Join(l.folder.path, "scheduler.yaml")
	if err := os.WriteFile(path, patched, 0o600); err != nil {
		return fmt.Errorf("writing the scheduler's configuration: %w", err)
	}
	port := l.port["scheduler"]
	args := append(l.serving(port, c.kubeconfig[Scheduler]), "--config="+path)
	return l.run(ctx, Scheduler, append(args, l.featureGates()...), l.healthy(fmt.Sprintf("https://%s/readyz", loopback(port))))
}

func (l *Lab) startKWOK(ctx context.Context) error {
	path := filepath.Join(l.folder.path, "stages.yaml")
	if err := os.WriteFile(path, stages, 0o600); err != nil {
		return fmt.Errorf("writing KWOK's stages: %w", err)
	}
	address := loopback(l.port["kwok"])
	return l.run(ctx, KWOK, []string{
		"--kubeconfig=" + l.credentials.kubeconfig[KWOK], "--config=" + path, "--manage-all-nodes=true",
		"--node-lease-duration-seconds=40", "--cidr=10.0.0.0/16", "--node-ip=127.0.0.1", "--server-address=" + address,
	}, l.healthy("http://"+address+"/healthz"))
}

// serving are the flags with which a component serves its health and metrics.
func (l *Lab) serving(port int, kubeconfig string) []string {
	c := l.credentials
	return []string{
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--tls-cert-file=" + c.serverCert, "--tls-private-key-file=" + c.serverKey,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
		fmt.Sprintf("--v=%d", l.opts.Verbosity),
	}
}

func (l *Lab) featureGates() []string {
	if len(l.opts.FeatureGates) == 0 {
		return nil
	}
	gates := map[string]string{}
	for gate, on := range l.opts.FeatureGates {
		gates[gate] = fmt.Sprint(on)
	}
	return []string{"--feature-gates=" + joined(gates)}
}

// joined writes a map as k=v,k=v in the order of its keys.
func joined(values map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, key+"="+values[key])
	}
	return strings.Join(parts, ",")
}
