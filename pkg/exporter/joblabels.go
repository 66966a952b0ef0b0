// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// jobKey is a GPU by its index, and its GPU instance or gpu.NoInstance.
type jobKey struct{ gpu, instance int }

func jobsOf(jobs []sharing.Job) map[jobKey][]string {
	if len(jobs) == 0 {
		return nil
	}
	out := make(map[jobKey][]string, len(jobs))
	for i := range jobs {
		key := jobKey{jobs[i].GPU, jobs[i].Instance}
		out[key] = append(out[key], jobs[i].ID)
	}
	return out
}

// perJob are the label sets of an entity's series once for each job that is on it, as dcgm-exporter has them.
func (f *deviceFamilies) perJob(e gpu.Entity, sets []labelID) []labelID {
	if len(f.jobs) == 0 {
		return sets
	}
	key := jobKey{instance: gpu.NoInstance}
	switch e.Kind {
	case gpu.KindGPUInstance:
		key.instance = e.ID
	case gpu.KindGPU, gpu.KindLink:
	default:
		return sets
	}
	card, ok := f.node.devices[e.GPU]
	if !ok {
		return sets
	}
	key.gpu = card.Index
	jobs := f.jobs[key]
	if len(jobs) == 0 {
		return sets
	}
	out := make([]labelID, 0, len(jobs)*len(sets))
	for _, set := range sets {
		for _, job := range jobs {
			out = append(out, f.labels.extend(set, label{"hpc_job", job}))
		}
	}
	return out
}
