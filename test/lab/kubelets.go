package lab

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// kubeletPolicy keeps KWOK from hitting the wrong pods.
//
//go:embed kubelets.yaml
var kubeletPolicy string

func (l *Lab) restrainKWOK(ctx context.Context) error {
	policyText, bindingText, _ := strings.Cut(kubeletPolicy, "\n---\n")
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	if err := yaml.UnmarshalStrict([]byte(policyText), policy); err != nil {
		return fmt.Errorf("reading the policy for KWOK: %w", err)
	}
	if err := yaml.UnmarshalStrict([]byte(bindingText), binding); err != nil {
		return fmt.Errorf("reading the binding of the policy for KWOK: %w", err)
	}
	admission := l.client.AdmissionregistrationV1()
	if _, err := admission.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the policy for KWOK: %w", err)
	}
	if _, err := admission.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the binding of the policy for KWOK: %w", err)
	}
	return nil
}
