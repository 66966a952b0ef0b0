// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// LabelNode makes labels those that manager has on a node, by server-side apply: a label that manager set before and that is
// not among them goes, and nobody else's is touched. A label that somebody else has with another value is an error that
// names them, and then nothing is changed. It needs patch of nodes.
func (c *Client) LabelNode(ctx context.Context, node, manager string, labels map[string]string) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": node, "labels": labels},
	})
	if err != nil {
		return fmt.Errorf("labels of node %s: %w", node, err)
	}
	bounded, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	nodes := c.meta.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	_, err = nodes.Patch(bounded, node, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: manager})
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("label node %s: somebody else has these labels (end them there: GPU feature discovery, or its rules): %w", node, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("label node %s: %w (patch of nodes must be allowed)", node, err)
	default:
		return fmt.Errorf("label node %s: %w", node, err)
	}
}
