// Package lab runs a real Kubernetes control plane on the loopback interface:
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler as released,
// and KWOK, which plays the kubelets of nodes that exist only as API objects.
//
// A test starts one with Start, describes its nodes in a few lines of YAML
// (ParseNodes, CreateNodes), and then talks to it through Config like to any
// cluster. RBAC is on, and ServiceAccountConfig gives a client exactly the
// rights that a service account has, so a missing rule in a chart fails here.
//
// What is real: admission, RBAC, scheduling, garbage collection, the Job and the
// other controllers, eviction by taint. What is not: kubelets. A pod that is
// bound to a lab node becomes Running at once, and its annotations say whether
// and when it ends (AnnotationRunSeconds, AnnotationFailAfterSeconds,
// AnnotationStopSeconds). No container is started and no token is mounted.
//
// The processes die with the process that called Start, however that one ends,
// and the lab's folder goes with them.
package lab
