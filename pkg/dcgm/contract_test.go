// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/gpu/gputest"
)

// contractNode has two whole cards, one that is divided, and another whole one. Its memory is
// used evenly: an engine samples used and free memory one after the other, and where they change
// in between, the sum is not the total.
func contractNode(version string) []string {
	var memory []string
	for _, e := range []string{"0", "1", "2", "3", "gi:14", "gi:15", "gi:16", "gi:17", "gi:18", "gi:19", "gi:20"} {
		memory = append(memory, "field "+e+" 251 7000", "field "+e+" 252 900", "field "+e+" 253 300")
	}
	return append([]string{
		"version " + version, "strict on", "gpus 4 h100",
		"field 0 191 notsupported", "field 1 191 notsupported", "field 2 191 notsupported", "field 3 191 notsupported",
		"mig 2 on", "gi 2 profile 1g.10gb nvml 9 placement 2 ci",
		"gi 2 profile 1g.10gb nvml 7 placement 0 ci", "gi 2 profile 3g.40gb nvml 1 placement 4 ci",
	}, memory...)
}

// contractMachine is a source on such a node, through an engine of its own or a host engine.
func contractMachine(version, endpoint string) gputest.Start {
	return func(t *testing.T, gpus gpu.Selection) gputest.Machine {
		m := openOn(t, pretend(t, contractNode(version)...), func(c *Config) {
			c.GPUs = gpus
			if endpoint != "" {
				c.Endpoint, _ = ParseEndpoint(endpoint)
			}
		})
		machine := gputest.Machine{
			Read: m.Read, Alarms: m.Alarms(), Interval: interval, Unsupported: 191,
			Health: true, Peers: !older(version, "4.3.1"),
			XID: func(index, instance, code int) {
				at := ""
				if instance != gpu.NoInstance {
					at = fmt.Sprintf(" gi %d", instance)
				}
				m.do(fmt.Sprintf("xid %d %d%s", index, code, at))
			},
			Repartition: func(index int) {
				m.do(fmt.Sprintf("gi %d remove 9", index), fmt.Sprintf("gi %d profile 2g.20gb nvml 3 placement 2 ci", index))
			},
			Lose:   func(index int) { m.do(fmt.Sprintf("lost %d", index)) },
			Return: func(index int) { m.do(fmt.Sprintf("back %d", index)) },
			Hang:   func(index int) { m.do(fmt.Sprintf("hang %d", index)) },
			Unhang: func(index int) { m.do(fmt.Sprintf("unhang %d", index)) },
			Slow:   func(index int, delay time.Duration) { m.do(fmt.Sprintf("slow %d %dms", index, delay.Milliseconds())) },
		}
		if !older(version, "4.5.0") {
			machine.Detach = func(index int) { m.do(fmt.Sprintf("detach %d", index)) }
			machine.Attach = func(index int) { m.do(fmt.Sprintf("attach %d", index)) }
		}
		if endpoint != "" {
			machine.Break = func() { m.do("down") }
			machine.Mend = func() { m.do("up") }
		}
		return machine
	}
}

func TestTheEngineInThisProcessKeepsTheContract(t *testing.T) {
	t.Parallel()
	gputest.Run(t, contractMachine("4.6.0", ""))
}

func TestAHostEngineKeepsTheContract(t *testing.T) {
	t.Parallel()
	gputest.Run(t, contractMachine("4.6.0", "unix:///run/pretend/engine"))
}

// Older libraries lack symbols, fields and return codes.
func TestOlderLibrariesKeepTheContract(t *testing.T) {
	for _, version := range []string{"4.0.0", "4.2.3", "4.4.2", "4.5.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			gputest.Run(t, contractMachine(version, ""))
		})
	}
}
