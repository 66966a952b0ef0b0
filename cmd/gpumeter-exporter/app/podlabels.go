// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"regexp"
	"time"
)

// validatePods checks how it is found out who holds what.
func (c Config) validatePods() error {
	switch c.PodWatch {
	case PodWatchAuto, PodWatchOn, PodWatchOff:
	default:
		return fmt.Errorf("--kubernetes-pod-watch %q: want %s, %s or %s", c.PodWatch, PodWatchAuto, PodWatchOn, PodWatchOff)
	}
	if _, err := c.podLabels(); err != nil {
		return err
	}
	if c.KubeletPoll != 0 && (c.KubeletPoll < minKubeletPoll || c.KubeletPoll > time.Minute) {
		return fmt.Errorf("--kubelet-poll %v: want %v to 1m, or 0 for never", c.KubeletPoll, minKubeletPoll)
	}
	return nil
}

// minKubeletPoll keeps the kubelet from being asked all the time.
const minKubeletPoll = 100 * time.Millisecond

// podLabels says which labels of pods, by their key, are added to the series of devices; nil for none.
func (c Config) podLabels() (func(key string) bool, error) {
	var allowed []*regexp.Regexp
	for _, text := range splitRegexes(c.PodLabelAllowlist) {
		re, err := regexp.Compile(text)
		if err != nil {
			return nil, fmt.Errorf("--kubernetes-pod-label-allowlist-regex: %q is no regular expression: %w", text, err)
		}
		allowed = append(allowed, re)
	}
	if !c.PodLabels {
		return nil, nil
	}
	return func(key string) bool {
		for _, re := range allowed {
			if re.MatchString(key) {
				return true
			}
		}
		return len(allowed) == 0
	}, nil
}

// splitRegexes parts a list at its commas, but for those of a repetition such as {1,3} or of a class, at which
// dcgm-exporter parts it too.
func splitRegexes(list string) []string {
	var out []string
	depth, start := 0, 0
	for i := 0; i < len(list); i++ {
		switch list[i] {
		case '\\':
			i++
		case '{', '[', '(':
			depth++
		case '}', ']', ')':
			depth--
		case ',':
			if depth <= 0 {
				out = append(out, list[start:i])
				start = i + 1
			}
		}
	}
	return trimmed(append(out, list[start:]))
}
