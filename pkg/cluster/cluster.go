// SPDX-License-Identifier: Apache-2.0

// Package cluster asks the API server for what it alone knows, by get, list and watch: one node's metadata, for which it
// needs these of nodes, and the pods of one node, for which it needs these of pods. It writes nothing but, where that is
// wanted, labels of a node.
package cluster

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// requestLimit bounds a request that is no watch.
const requestLimit = 10 * time.Second

// Config says how the API server is reached.
type Config struct {
	// Kubeconfig is a file's path; empty is the service account of the pod that this runs in.
	Kubeconfig string
	// UserAgent names the program to the API server.
	UserAgent string
}

// Client speaks to an API server. It is safe for concurrent use.
type Client struct {
	meta metadata.Interface
	// core is for what metadata alone does not tell.
	core rest.Interface
}

// Connect makes a Client. It does not speak to the API server yet: an error is about what is
// configured, and says what to do.
func Connect(cfg Config) (*Client, error) {
	rc, err := restConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	rc.UserAgent = cfg.UserAgent
	meta, err := metadata.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("client of the API server at %s: %w", rc.Host, err)
	}
	core, err := coreClient(rc)
	if err != nil {
		return nil, fmt.Errorf("client of the API server at %s: %w", rc.Host, err)
	}
	return &Client{meta, core}, nil
}

// coreClient makes requests whose answers are read as JSON here: what Kubernetes' own types would decode, and keep, of
// a pod is a hundred times what is wanted.
func coreClient(rc *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	asJSON := rest.CopyConfig(rc)
	asJSON.AcceptContentTypes, asJSON.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	asJSON.GroupVersion = &schema.GroupVersion{Version: "v1"}
	asJSON.APIPath = "/api"
	asJSON.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(asJSON)
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
		}
		return rc, nil
	}
	rc, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, fmt.Errorf("the API server cannot be found: %w (this is no pod: give a kubeconfig)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("the pod's service account cannot be used: %w (is automountServiceAccountToken off?)", err)
	}
	return rc, nil
}
