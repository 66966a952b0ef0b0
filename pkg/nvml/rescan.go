// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// kernelGPUs is where the kernel module lists the GPUs that it drives, by their PCI addresses.
// A container sees those that were given to it.
const kernelGPUs = "/proc/driver/nvidia/gpus"

// rescanPause is how long the library is left alone after it was initialised, whatever the
// kernel module does: to initialise it is no small thing.
const rescanPause = 30 * time.Second

// driven are the GPUs that the kernel module drives now, nil where that cannot be seen.
func driven(folder string) []string {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// rescan connects anew where the kernel module drives other GPUs than when the library was
// initialised: that lists what there was then, so that a GPU that is bound later would not be
// seen. While a call hangs the rest goes on as it is.
func (s *Source) rescan(w *waiting) error {
	now := driven(s.kernelGPUs)
	if now == nil || slices.Equal(now, s.driven) || time.Since(s.connected) < rescanPause || s.stuck() {
		return nil
	}
	came, went := changes(s.driven, now)
	s.log.Info("the kernel module drives other GPUs than before; the library is initialised anew", "came", came, "went", went)
	if err := s.disconnect(w); err != nil {
		s.log.Warn("the GPUs are read on as they were listed before", "error", err)
		s.connected = time.Now()
		return nil
	}
	if err := s.connect(w); err != nil {
		return s.postpone(err)
	}
	return nil
}

// stuck reports whether something is still under way from an earlier reading.
func (s *Source) stuck() bool {
	return s.node.taken.Load() || s.peers.lane.taken.Load() ||
		slices.ContainsFunc(s.cards, func(c *card) bool { return c.lane.taken.Load() })
}

// mostNamed bounds how many devices a line of the log names.
const mostNamed = 16

// changes are what of two lists is in the later one only, and in the earlier one only, each in a
// line of bounded length.
func changes(before, now []string) (came, went string) {
	only := func(in, without []string) string {
		var names []string
		more := 0
		for _, name := range in {
			switch {
			case slices.Contains(without, name):
			case len(names) == mostNamed:
				more++
			default:
				names = append(names, fmt.Sprintf("%.80s", name))
			}
		}
		line := strings.Join(names, ", ")
		if more > 0 {
			line += fmt.Sprintf(" and %d more", more)
		}
		return cmp.Or(line, "none")
	}
	return only(now, before), only(before, now)
}

// tellInventory logs which devices came and went since the reading before.
func (s *Source) tellInventory(devices []gpu.Device) {
	names := func(devices []gpu.Device) []string {
		out := make([]string, len(devices))
		for i, d := range devices {
			out[i] = fmt.Sprintf("GPU %d %s", d.Index, d.UUID)
		}
		return out
	}
	same := func(a, b gpu.Device) bool { return a.UUID == b.UUID && a.Index == b.Index }
	if s.inventory != nil {
		if slices.EqualFunc(s.inventory, devices, same) {
			return
		}
		came, went := changes(names(s.inventory), names(devices))
		s.log.Info("the inventory has changed", "came", came, "went", went)
	}
	s.inventory = append([]gpu.Device{}, devices...)
}
