package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of the types in this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

// NodeTopologies is the resource of NodeTopology.
var NodeTopologies = GroupVersion.WithResource("nodetopologies")

// AddToScheme makes the types known to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &NodeTopology{}, &NodeTopologyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
