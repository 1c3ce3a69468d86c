package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// Apply applies the documents of a YAML file, as kubectl apply --server-side does.
func Apply(ctx context.Context, config *rest.Config, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading a manifest: %w", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client to apply %s: %w", path, err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client to apply %s: %w", path, err)
	}
	groups, err := restmapper.GetAPIGroupResources(disco)
	if err != nil {
		return fmt.Errorf("discovering the API to apply %s: %w", path, err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("decoding %s: %w", path, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("applying %s %s of %s: %w", kind.Kind, object.GetName(), path, err)
		}
		resource := client.Resource(mapping.Resource)
		options := metav1.ApplyOptions{FieldManager: "lockstep-test", Force: true}
		if object.GetNamespace() != "" {
			_, err = resource.Namespace(object.GetNamespace()).Apply(ctx, object.GetName(), object, options)
		} else {
			_, err = resource.Apply(ctx, object.GetName(), object, options)
		}
		if err != nil {
			return fmt.Errorf("applying %s %s of %s: %w", kind.Kind, object.GetName(), path, err)
		}
	}
}

// awaitAdmission returns once the API server marks gang members: it takes a
// policy up a moment after it was created.
func (s *Stack) awaitAdmission(ctx context.Context) error {
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "admission-probe-", Namespace: metav1.NamespaceDefault,
			Annotations: map[string]string{v1alpha1.Gang: "probe", v1alpha1.MinMember: "1"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	err := poll(ctx, time.Minute, func(ctx context.Context) error {
		got, err := s.Client.CoreV1().Pods(probe.Namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		if len(got.Spec.SchedulingGates) == 0 {
			return errors.New("the admission policy is not in force")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the admission policy: %w", err)
	}
	return nil
}
