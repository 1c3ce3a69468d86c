package nodeagent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

// Publisher writes the NodeTopology of one node.
type Publisher struct {
	client dynamic.ResourceInterface
	nodes  dynamic.ResourceInterface
	node   string
	last   *v1alpha1.NodeTopology // as it is in the API server; nil: not known
}

// NewPublisher makes the publisher of the node's object.
func NewPublisher(client dynamic.Interface, node string) *Publisher {
	return &Publisher{
		client: client.Resource(v1alpha1.NodeTopologies),
		nodes:  client.Resource(corev1.SchemeGroupVersion.WithResource("nodes")),
		node:   node,
	}
}

// Publish writes what build makes of the present report, if it says that this is
// due. It tells whether it wrote.
func (p *Publisher) Publish(ctx context.Context, build func(old *v1alpha1.NodeTopologyStatus) (*v1alpha1.NodeTopologyStatus, bool)) (bool, error) {
	if p.last == nil {
		if err := p.fetch(ctx); err != nil {
			return false, err
		}
	}
	fresh, due := build(&p.last.Status)
	if !due {
		return false, nil
	}
	next := p.last.DeepCopy()
	next.Status = *fresh
	written, err := p.write(ctx, next)
	if err != nil {
		p.last = nil // somebody else's write, or none: look again
		return false, fmt.Errorf("writing the NodeTopology of node %s: %w", p.node, err)
	}
	p.last = written
	return true, nil
}

// fetch reads the object. One that is not there yet is made with the first report;
// it belongs to the node, and goes with it.
func (p *Publisher) fetch(ctx context.Context) error {
	got, err := p.client.Get(ctx, p.node, metav1.GetOptions{})
	switch {
	case err == nil:
		p.last, err = decode(got)
		return err
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading the NodeTopology of node %s: %w", p.node, err)
	}
	node, err := p.nodes.Get(ctx, p.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading node %s: %w", p.node, err)
	}
	p.last = &v1alpha1.NodeTopology{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeTopology"},
		ObjectMeta: metav1.ObjectMeta{Name: p.node, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: p.node, UID: node.GetUID(),
		}}},
	}
	return nil
}

func (p *Publisher) write(ctx context.Context, t *v1alpha1.NodeTopology) (*v1alpha1.NodeTopology, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(t)
	if err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{Object: content}
	var got *unstructured.Unstructured
	if t.ResourceVersion == "" {
		got, err = p.client.Create(ctx, object, metav1.CreateOptions{})
	} else {
		got, err = p.client.Update(ctx, object, metav1.UpdateOptions{})
	}
	if err != nil {
		return nil, err
	}
	return decode(got)
}

func decode(object *unstructured.Unstructured) (*v1alpha1.NodeTopology, error) {
	out := &v1alpha1.NodeTopology{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, out); err != nil {
		return nil, fmt.Errorf("decoding the NodeTopology of node %s: %w", object.GetName(), err)
	}
	return out, nil
}
