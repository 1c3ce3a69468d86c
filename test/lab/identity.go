package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenLifetime is that of the tokens of ServiceAccountConfig: longer than any
// test, since nothing renews them.
const tokenLifetime = 24 * time.Hour

// The users with client certificates. The components have the names and groups
// that kubeadm gives them, so the built-in RBAC roles apply.
var users = map[Component]struct {
	name   string
	groups []string
}{
	APIServer:         {"lab-admin", []string{"system:masters"}}, // whoever talks to the API server as the lab's owner
	ControllerManager: {"system:kube-controller-manager", nil},
	Scheduler:         {"system:kube-scheduler", nil},
	KWOK:              {"lab-kubelets", []string{"system:masters"}},
}

// credentials are the files that the components read, and the admin's config.
type credentials struct {
	ca         string // path
	serverCert string // path
	serverKey  string // path
	signingKey string // path, of service account tokens

	admin      *rest.Config
	kubeconfig map[Component]string // paths; that of APIServer is the admin's
}

// newCredentials makes certificates and keys for a cluster at the given API
// server address and writes them into the folder.
func newCredentials(folder, server string) (*credentials, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	serving, err := ca.server()
	if err != nil {
		return nil, err
	}
	signing, err := newSigningKey()
	if err != nil {
		return nil, err
	}
	c := &credentials{kubeconfig: map[Component]string{}}
	for _, file := range []struct {
		path *string
		name string
		data []byte
	}{
		{&c.ca, "ca.crt", ca.pem},
		{&c.serverCert, "server.crt", serving.cert},
		{&c.serverKey, "server.key", serving.key},
		{&c.signingKey, "tokens.key", signing},
	} {
		*file.path = filepath.Join(folder, file.name)
		if err := os.WriteFile(*file.path, file.data, 0o600); err != nil {
			return nil, fmt.Errorf("writing the lab's certificates: %w", err)
		}
	}
	for component, user := range users {
		pair, err := ca.client(user.name, user.groups...)
		if err != nil {
			return nil, err
		}
		config := &rest.Config{Host: server, TLSClientConfig: rest.TLSClientConfig{
			CAData: ca.pem, CertData: pair.cert, KeyData: pair.key,
		}}
		path := filepath.Join(folder, string(component)+".kubeconfig")
		if component == APIServer {
			path = filepath.Join(folder, "kubeconfig")
			// A negative rate switches off the client's own throttling.
			config.QPS = -1
			c.admin = config
		}
		if err := WriteKubeconfig(path, config); err != nil {
			return nil, err
		}
		c.kubeconfig[component] = path
	}
	return c, nil
}

// WriteKubeconfig writes a kubeconfig file, readable by its owner only, for a
// configuration with inline data or a token, such as those that Lab.Config and
// Lab.ServiceAccountConfig return.
func WriteKubeconfig(path string, config *rest.Config) error {
	const name = "lockstep-lab"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{
		Server: config.Host, CertificateAuthorityData: config.CAData,
	}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.CurrentContext = name
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		return fmt.Errorf("writing the kubeconfig %s: %w", path, err)
	}
	return nil
}

// Config returns a configuration for the lab's administrator, who may do
// everything, without client-side throttling. The copy is the caller's.
func (l *Lab) Config() *rest.Config {
	return rest.CopyConfig(l.credentials.admin)
}

// Kubeconfig returns the path of a kubeconfig file for the lab's administrator.
// It is gone after Stop.
func (l *Lab) Kubeconfig() string {
	return l.credentials.kubeconfig[APIServer]
}

// ServiceAccountConfig returns a configuration that authenticates as a service
// account and so has the rights that RBAC gives it and no more. Like Config's,
// it does not throttle. The account must exist.
func (l *Lab) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	return l.tokenConfig(ctx, namespace, name, nil)
}

// NodeAccountConfig is ServiceAccountConfig with a token that is bound to the node,
// as those of pods that run there are.
func (l *Lab) NodeAccountConfig(ctx context.Context, namespace, name, node string) (*rest.Config, error) {
	n, err := l.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token for node %s: %w", node, err)
	}
	return l.tokenConfig(ctx, namespace, name, &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: n.UID})
}

func (l *Lab) tokenConfig(ctx context.Context, namespace, name string, to *authenticationv1.BoundObjectReference) (*rest.Config, error) {
	seconds := int64(tokenLifetime / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, BoundObjectRef: to}}
	token, err := l.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token for the service account %s/%s: %w", namespace, name, err)
	}
	config := rest.AnonymousClientConfig(l.credentials.admin)
	config.QPS = -1
	config.BearerToken = token.Status.Token
	return config, nil
}
