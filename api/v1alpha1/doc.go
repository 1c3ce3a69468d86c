// +kubebuilder:object:generate=true
// +groupName=lockstep.scheduler

package v1alpha1
