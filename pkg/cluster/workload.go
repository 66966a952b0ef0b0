// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strconv"
	"strings"
	"time"
)

// hashedBy are the labels by which those who make ReplicaSets tell them apart: a ReplicaSet is named after
// its maker and the label's value.
var hashedBy = [...]struct{ label, kind string }{
	{"pod-template-hash", "Deployment"},
	{"rollouts-pod-template-hash", "Rollout"},
}

// workload is the owner at the top as far as the pod alone can tell: no further object is asked for. A pod
// that nobody controls, or the node's own kubelet, is its own.
func (m *podMetadata) workload() (kind, name string) {
	controller := owner{}
	for _, o := range m.Owners {
		if o.Controller {
			controller = o
		}
	}
	switch controller.Kind {
	case "", "Node":
		return "Pod", m.Name
	case "ReplicaSet":
		for _, by := range hashedBy {
			if hash := m.Labels[by.label]; hash != "" {
				if maker, cut := strings.CutSuffix(controller.Name, "-"+hash); cut && maker != "" {
					return by.kind, maker
				}
			}
		}
	case "Job":
		if cron, is := scheduled(controller.Name, m.Created); is {
			return "CronJob", cron
		}
	}
	if controller.Name == "" || len(controller.Name) > maxName || len(controller.Kind) > maxName {
		return "", ""
	}
	return controller.Kind, controller.Name
}

// A pod of a Job comes after the minute for which a CronJob scheduled it, but for clocks that differ, and within the
// time that Jobs are retried or suspended for.
const (
	scheduleEarly = time.Hour
	scheduleLate  = 90 * 24 * time.Hour
)

// scheduled is the CronJob's name in the name of a Job that it made: "name-29384520", the minute of the schedule since
// 1970. A number that is not about the pod's creation is part of a name.
func scheduled(job string, created time.Time) (cron string, is bool) {
	at := strings.LastIndexByte(job, '-')
	if at <= 0 {
		return "", false
	}
	minute, err := strconv.ParseUint(job[at+1:], 10, 32)
	if err != nil {
		return "", false
	}
	after := created.Sub(time.Unix(int64(minute)*60, 0))
	return job[:at], after > -scheduleEarly && after < scheduleLate
}
