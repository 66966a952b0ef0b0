// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// survey is which GPUs and instances there are now, as far as the engine knows without asking
// the driver; it is cheap enough for each reading. Never modified once made.
type survey struct {
	ss *session
	// all are the GPUs that the engine has ever seen, supported those that can be used now.
	all, supported []uint32
	// instances are the GPU instances of each GPU, in the order of NVML's ids; doubt is why they
	// may be no longer so.
	instances map[uint32][]instance
	doubt     error
}

// has reports whether a GPU can be used now.
func (s *survey) has(id uint32) bool { return slices.Contains(s.supported, id) }

// roomy reports whether each GPU can have a group more, beside those that it has already.
func (s *survey) roomy() bool {
	const groups, perGPU = 62 - 6, 3
	if s.crowded() {
		return 2*len(s.all) <= groups
	}
	return (perGPU+1)*len(s.all) <= groups
}

// crowded reports whether there are too many GPUs to have three groups each: an engine has 64
// for all its clients, two of which are its own, and what is not a GPU needs a few.
func (s *survey) crowded() bool {
	const groups, perGPU = 62 - 6, 3
	return len(s.all) > groups/perGPU
}

// clerkJob is a look at the whole engine.
type clerkJob struct {
	ss   *session
	what errand
	// before is the session's last survey, or nil.
	before *survey
	// links says that errandPeers is to count the links as well.
	links bool
}

// errand is what a clerk is sent for.
type errand int

const (
	// errandSurvey: which GPUs and instances there are.
	errandSurvey errand = iota
	// errandPeers: the ways between the GPUs.
	errandPeers
	// errandSample: have the engine sample what is newly watched, as older engines do not do
	// by themselves. It waits for all GPUs.
	errandSample
	// errandRollCall: whether the GPUs that can be used are still the same.
	errandRollCall
)

// clerkAnswer has what the job asked for.
type clerkAnswer struct {
	clerkJob
	survey *survey
	// others says that other GPUs can be used than before.
	others bool
	ways   []peer
	// direct are the links by pair, untold why some are missing.
	direct map[[2]uint32]int
	untold error
	err    error
}

// look does the clerk's jobs: what concerns the whole engine and not one GPU.
func look(job clerkJob) clerkAnswer {
	a := clerkAnswer{clerkJob: job}
	switch job.what {
	case errandPeers:
		a.ways, a.err = job.ss.peers()
		if a.err == nil && job.links {
			a.direct, a.untold = job.ss.allDirectLinks(job.before.supported)
			_ = job.ss.fail(a.untold)
		}
	case errandSample:
		a.err = job.ss.update(true)
	case errandSurvey:
		a.survey, a.err = job.ss.survey(job.before)
	case errandRollCall:
		a.others, a.err = job.ss.rollCall(job.before)
	}
	if a.err != nil {
		a.err = job.ss.fail(a.err)
	}
	if job.what == errandSurvey && !job.ss.embedded && returned(a.err) == stTimeout {
		// It needs nothing of the driver: nobody is at the other end any more.
		job.ss.renew(a.err)
	}
	return a
}

// survey asks what there is. Where the instances are not told, they are those of the survey
// before.
func (ss *session) survey(before *survey) (*survey, error) {
	all, err := ss.allDevices()
	if err != nil {
		return nil, fmt.Errorf("looking for GPUs: %w", err)
	}
	supported, err := ss.supportedDevices()
	if err != nil {
		return nil, fmt.Errorf("looking for GPUs: %w", err)
	}
	s := &survey{ss: ss, all: all, supported: supported}
	slices.Sort(s.all)
	if len(supported) == 0 {
		return s, nil
	}
	entities, err := ss.hierarchy()
	switch {
	case err == nil:
		s.instances = instancesOf(entities)
	case before != nil:
		s.instances = before.instances
	}
	if ss.over() || err != nil && !notSupported(err) {
		s.doubt = fmt.Errorf("looking for MIG instances: %w", ss.fail(err))
	}
	return s, nil
}

// notSupported reports whether an error says that library, engine or hardware do not have what
// was asked for, and will not.
func notSupported(err error) bool {
	return errors.Is(err, errMissing) || reasonOf(returned(err)) == gpu.ReasonNotSupported
}

// instancesOf sorts the hierarchy by GPU. A GPU instance without a compute instance is left
// out: nothing can run on it, and the driver has no name for it.
func instancesOf(entities []migEntity) map[uint32][]instance {
	out := map[uint32][]instance{}
	for _, e := range entities {
		if e.entity.group == groupGPUInstance && e.parent.group == groupGPU {
			out[e.parent.id] = append(out[e.parent.id], instance{id: int(e.entity.id), nvml: e.gpuInstance, slices: e.slices})
		}
	}
	parts := map[uint32][]part{}
	for _, e := range entities {
		if e.entity.group == groupComputeInstance && e.parent.group == groupGPUInstance {
			parts[e.parent.id] = append(parts[e.parent.id], part{id: int(e.entity.id), nvml: e.computeInstance, slices: e.slices})
		}
	}
	for id, list := range out {
		for i := range list {
			list[i].parts = parts[uint32(list[i].id)]
			slices.SortFunc(list[i].parts, func(a, b part) int { return cmp.Compare(a.nvml, b.nvml) })
		}
		list = slices.DeleteFunc(list, func(i instance) bool { return len(i.parts) == 0 })
		out[id] = list
		slices.SortFunc(list, func(a, b instance) int { return cmp.Compare(a.nvml, b.nvml) })
	}
	return out
}

// surveyed is the survey of this reading, or the session's last one beside the error that says
// why there is none. Without either there is no reading.
func (s *Source) surveyed(ctx context.Context, ss *session) (*survey, error) {
	s.hearClerk()
	known := s.known(ss) != nil
	limit := ctx
	if known {
		// The GPUs need most of the time.
		var done context.CancelFunc
		limit, done = context.WithTimeout(ctx, remaining(ctx)/3)
		defer done()
	}
	if stuck := known && s.clerk.busy() && time.Since(s.clerk.since) > time.Second; !stuck && s.clerk.busy() {
		if a, ok := s.clerk.take(limit.Done()); ok {
			s.filed(a)
		}
	}
	if !s.clerk.busy() {
		s.clerk.begin(clerkJob{ss: ss, what: errandSurvey, before: s.known(ss)})
		if a, ok := s.clerk.take(limit.Done()); ok {
			s.filed(a)
			if a.survey != nil {
				a.err = a.survey.doubt
			}
			return s.known(ss), a.err
		}
	}
	return s.known(ss), &outage{
		kind: kindTimeout,
		text: fmt.Sprintf("DCGM (%s) has not said which GPUs there are, asked at %s", s.cfg.Endpoint, s.clerk.since.Format(time.TimeOnly)),
	}
}

// known is the session's last survey, or nil.
func (s *Source) known(ss *session) *survey {
	if s.last == nil || s.last.ss != ss {
		return nil
	}
	return s.last
}

// hearClerk takes in what the clerk answered after its reading was over.
func (s *Source) hearClerk() {
	if a, ok := s.clerk.late(); ok {
		s.filed(a)
	}
}

// filed takes in what the clerk found.
func (s *Source) filed(a clerkAnswer) {
	switch {
	case a.what == errandPeers:
		if a.untold != nil {
			s.settings.log.Debug("DCGM does not tell all NVLinks between GPUs", "error", a.untold)
		}
		s.peers.heard(a)
	case a.others && a.before == s.last:
		s.raise()
	case a.survey != nil:
		s.last = a.survey
	}
}
