//go:build depstmp

package depstmp

import (
	_ "github.com/alicebob/miniredis/v2"
	_ "github.com/go-chi/chi/v5"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/prometheus/client_golang/prometheus/testutil"
	_ "github.com/redis/go-redis/v9"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apimachinery/pkg/types"
	_ "k8s.io/client-go/informers"
	_ "k8s.io/client-go/tools/clientcmd"
	_ "k8s.io/client-go/tools/events"
	_ "k8s.io/component-helpers/resource"
	_ "k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	_ "k8s.io/kube-scheduler/config/v1"
	_ "k8s.io/kube-scheduler/extender/v1"
	_ "pgregory.net/rapid"
	_ "sigs.k8s.io/yaml"
)
