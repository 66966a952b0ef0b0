// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpmSample is a state of a board's or an instance's counters.
type gpmSample struct {
	m        *machine
	of       *board
	instance int
	at       time.Time
	freed    bool
}

func (s *gpmSample) Get(d nvml.Device) nvml.Return { return s.take(d.(*board), 0) }

func (s *gpmSample) MigGet(d nvml.Device, instance int) nvml.Return {
	b := d.(*board)
	b.m.mu.Lock()
	there := slices.ContainsFunc(b.parts, func(p *migDevice) bool { return p.gi == instance })
	b.m.mu.Unlock()
	if !there {
		return nvml.ERROR_NOT_FOUND
	}
	return s.take(b, instance)
}

func (s *gpmSample) take(b *board, instance int) nvml.Return {
	if ret := b.call("nvmlGpmSampleGet"); ret != nvml.SUCCESS {
		return ret
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	s.of, s.instance, s.at = b, instance, time.Now()
	return nvml.SUCCESS
}

func (s *gpmSample) Free() nvml.Return {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	s.freed = true
	s.m.samples--
	return nvml.SUCCESS
}
