// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/pkg/cluster"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// How far the node's labels are asked for what its MIG manager says.
const (
	// nodeWatchAuto: where a config is chosen by the node's label, or where this is a pod that knows its node.
	nodeWatchAuto = "auto"
	// nodeWatchOn: it is an error where that cannot be.
	nodeWatchOn = "on"
	// nodeWatchOff: no further than --config-dir needs it.
	nodeWatchOff = "off"
)

// maxRepartition is longer than any repartition takes: meanwhile a GPU that is lost is handed out.
const maxRepartition = 12 * time.Hour

func (c *config) nodeFlags() []cli.Flag {
	return []cli.Flag{
		c.str(&c.nodeWatch, "whether the node's labels are asked for what its MIG manager says: auto (with --config-dir, or in a pod whose node is named by --node-name), on, off", "node-watch", "GPUMETER_NODE_WATCH"),
		c.span(&c.repartition, "`TIME` for which no GPU is called lost or stuck, and none recovers, while a MIG manager divides the node's GPUs anew, as the node's label "+health.MIGStateLabel+" says; 0 to judge all the same", "health-repartition-limit", "GPUMETER_HEALTH_REPARTITION_LIMIT"),
	}
}

// validateNode finds what is wrong with what concerns the node and its labels.
func (c config) validateNode() []error {
	var problems []error
	if c.features.labels == featuresNode && c.nodeName == "" && !c.check {
		problems = append(problems, errors.New("--feature-labels=node needs the node's name: set NODE_NAME from spec.nodeName"))
	}
	if c.features.labels == featuresFile && c.features.file == "" {
		problems = append(problems, errors.New("--feature-labels=file needs a --feature-file"))
	}
	if c.nodeWatch == nodeWatchOn && c.nodeName == "" && !c.check {
		problems = append(problems, errors.New("--node-watch=on needs the node's name: set NODE_NAME from spec.nodeName"))
	}
	if c.repartition < 0 || c.repartition > maxRepartition {
		problems = append(problems, fmt.Errorf("--health-repartition-limit %v: want 0 to %v, such as 30m", c.repartition, maxRepartition))
	}
	return problems
}

// meetNode makes what speaks to the API server of the node, as far as somebody wants it. Nothing is asked yet.
func (a *app) meetNode() error {
	c := a.cfg
	inPod := c.nodeName != "" && (c.kubeconfig != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "")
	watches := c.configDir != "" || c.nodeWatch == nodeWatchOn || c.nodeWatch == nodeWatchAuto && inPod && c.source != sourceSim
	var client *cluster.Client
	if watches || c.features.labels == featuresNode {
		var err error
		client, err = cluster.Connect(cluster.Config{Kubeconfig: c.kubeconfig, UserAgent: "gpumeter-device-plugin/" + Version()})
		switch {
		case err == nil:
		case c.configDir != "":
			return fmt.Errorf("--config-dir needs the node's labels: %w", err)
		case c.features.labels == featuresNode:
			return fmt.Errorf("--feature-labels=node: %w", err)
		case c.nodeWatch == nodeWatchOn:
			return fmt.Errorf("--node-watch=on: %w", err)
		default:
			a.log.Info("what a MIG manager says of the node is not known", "because", err)
			watches = false
		}
	}
	if watches {
		a.node = client.WatchNode(c.nodeName, a.log)
	}
	switch c.features.labels {
	case featuresFile:
		a.labels = newLabelWriter(func(_ context.Context, labels map[string]string) error {
			return writeFeatureFile(c.features.file, labels)
		}, a.log)
	case featuresNode:
		a.labels = newLabelWriter(func(ctx context.Context, labels map[string]string) error {
			return client.LabelNode(ctx, c.nodeName, featureManager, labels)
		}, a.log)
	}
	return nil
}
