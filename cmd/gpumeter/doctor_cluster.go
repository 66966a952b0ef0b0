// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/cluster"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// asksAPI says whether the exporter would ask the API server.
func (d *doctor) asksAPI() bool {
	c := d.cfg
	reachable := c.Kubeconfig != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	return c.NodeName != "" && c.PodWatch != app.PodWatchOff && (reachable || c.PodWatch == app.PodWatchOn)
}

// checkNode asks what a MIG manager says of the node, since that decides whether GPUs are judged.
func (d *doctor) checkNode(ctx context.Context, _ exam) outcome {
	unknown := func(err error) outcome {
		return found(finding{Status: statusInfo, Text: "the node's labels are not known: " + err.Error(),
			Remedy: "allow get, list and watch of nodes (docs/permissions.md); without them nothing but labels and the pause of a repartition is missing"})
	}
	client, err := cluster.Connect(cluster.Config{Kubeconfig: d.cfg.Kubeconfig, UserAgent: "gpumeter-doctor/" + app.Version()})
	if err != nil {
		return unknown(err)
	}
	watching, stop := context.WithCancel(ctx)
	watch := client.WatchNode(d.cfg.NodeName, nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// It ends with the context, through whatever errors.
		_ = watch.Run(watching)
	}()
	defer func() { stop(); <-ended }()
	state, changed := watch.Watch()
	for !state.Synced && state.Err == nil {
		select {
		case <-changed:
			state, changed = watch.Watch()
		case <-ctx.Done():
			return unknown(ctx.Err())
		}
	}
	if state.Err != nil {
		return unknown(state.Err)
	}
	said := health.MIGStateOf(state.Labels, true)
	switch {
	case said.UnderWay() && d.cfg.Health.RepartitionLimit == 0:
		return found(finding{Status: statusInfo, Text: fmt.Sprintf("the MIG manager divides the GPUs anew (%s=%s): GPUs are judged all the same, as --health-repartition-limit says", health.MIGStateLabel, said)})
	case said.UnderWay():
		return found(finding{Status: statusInfo, Text: fmt.Sprintf("the MIG manager divides the GPUs anew (%s=%s): no GPU is called lost or stuck, and none recovers, until it has done so or %v are over",
			health.MIGStateLabel, said, d.cfg.Health.RepartitionLimit)})
	case said == health.MIGFailed:
		return found(finding{Status: statusWarn, Text: fmt.Sprintf("the MIG manager could not divide the GPUs as it should (%s=%s)", health.MIGStateLabel, said),
			Remedy: "see the log of the MIG manager; the GPUs are what the check of devices shows"})
	case said == health.MIGNone:
		return found(finding{Status: statusOK, Text: "no MIG manager says anything of it"})
	}
	return found(finding{Status: statusOK, Text: fmt.Sprintf("nothing is under way: %s=%s", health.MIGStateLabel, said)})
}
