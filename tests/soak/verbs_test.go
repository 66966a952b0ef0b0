// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// do does what has to happen, and says what that was.
func (n *node) do(h happening) string {
	r := rand.New(rand.NewPCG(h.seed, 0))
	switch h.verb {
	case verbXID:
		return n.machine.xid(r)
	case verbLose:
		return n.machine.lose(r)
	case verbHang:
		return n.machine.hang(r)
	case verbRepartition:
		return n.machine.repartition(r)
	case verbClear:
		return n.clear()
	case verbCounters:
		return n.said(n.counters(r))
	case verbConfig:
		return n.said(n.config(r))
	case verbKubelet:
		n.kubelet.signal(syscall.SIGHUP)
		return "kubelet restarts"
	case verbKillKubelet:
		return n.restart(n.kubelet, syscall.SIGKILL, r)
	case verbKillExport:
		return n.restart(n.exporter, syscall.SIGKILL, r)
	case verbStopExport:
		return n.restart(n.exporter, syscall.SIGTERM, r)
	case verbKillPlugin:
		return n.restart(n.plugin, syscall.SIGKILL, r)
	case verbStopPlugin:
		return n.restart(n.plugin, syscall.SIGTERM, r)
	}
	n.must(fmt.Errorf("nobody knows how to %s", h.verb))
	return ""
}

func (n *node) said(text string, err error) string {
	n.must(err)
	return text
}

// restart ends a program, and starts it again after up to three seconds.
func (n *node) restart(p *program, s syscall.Signal, r *rand.Rand) string {
	p.end(s)
	time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
	n.must(p.start())
	return fmt.Sprintf("%s: %v", p.name, s)
}

// clear gives an operator's word for every GPU that is unhealthy. Somebody else may be faster, or the exporter away: that is no violation.
func (n *node) clear() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tool := filepath.Join(n.programs, "gpumeter")
	out, _ := exec.CommandContext(ctx, tool, "health", "--socket", n.path("health.sock"), "--timeout", "3s", "--json").Output()
	var list struct {
		Devices []struct {
			UUID, Status string
		}
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return "nobody to clear: the exporter does not answer"
	}
	cleared := 0
	for _, v := range list.Devices {
		if v.Status == "unhealthy" {
			if exec.CommandContext(ctx, tool, "health", "--socket", n.path("health.sock"), "clear", "--device", v.UUID, "--by", "soak", "--reason", "soak").Run() == nil {
				cleared++
			}
		}
	}
	return fmt.Sprintf("%d of %d devices cleared", cleared, len(list.Devices))
}

// goodCounters are files that are taken.
func goodCounters() []string {
	return []string{
		"DCGM_FI_DEV_GPU_TEMP, gauge, temperature\nDCGM_FI_DEV_POWER_USAGE, gauge, power\nDCGM_FI_DEV_GPU_UTIL, gauge, use\n" +
			"DCGM_FI_DEV_FB_USED, gauge, memory\nDCGM_FI_DEV_XID_ERRORS, gauge, xid\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, energy\nDCGM_FI_DRIVER_VERSION, label, driver\n",
		"DCGM_FI_DEV_GPU_TEMP, gauge, temperature\nDCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, engine\nDCGM_FI_DEV_SM_CLOCK, gauge, clock\n",
		"DCGM_FI_DEV_GPU_TEMP, gauge, temperature\nDCGM_FI_NO_SUCH_FIELD, gauge, wrong\nDCGM_EXP_XID_ERRORS_COUNT, gauge, xids\n",
	}
}

// settle waits until a program that has just been started has read its file: neither begins with a bad one.
func settle(p *program) {
	const reads = 2 * time.Second
	_, _, since := p.now()
	time.Sleep(reads - time.Since(since))
}

// counters replaces the exporter's counter file by a good or a bad one, and half of the time does not wait until it is noticed.
func (n *node) counters(r *rand.Rand) (string, error) {
	content, what := "", ""
	switch r.IntN(6) {
	case 0:
		content, what = "no counter file at all\n", "words"
	case 1:
		content, what = "", "empty"
	case 2:
		content, what = strings.Repeat("DCGM_FI_DEV_GPU_TEMP, gauge, x\n", 40000), "more than is read"
	default:
		content, what = goodCounters()[r.IntN(len(goodCounters()))], "good"
	}
	settle(n.exporter)
	err := replaceFile(n.path("counters.csv"), content)
	if r.IntN(2) == 0 {
		n.exporter.signal(syscall.SIGHUP)
		what += ", SIGHUP"
	}
	return "counter file: " + what, err
}

func goodConfig(replicas int) string {
	return fmt.Sprintf(`version: v1
flags: {migStrategy: mixed, plugin: {deviceListStrategy: [envvar]}}
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, devices: %s, replicas: %d}
`, sharedList, replicas)
}

// config replaces the device plugin's config by a good or a bad one.
func (n *node) config(r *rand.Rand) (string, error) {
	content, what := "", ""
	switch r.IntN(4) {
	case 0:
		content, what = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: -1}]}}\n", "replicas -1"
	case 1:
		content, what = "{{{", "no YAML"
	default:
		replicas := []int{2, 4, 8}[r.IntN(3)]
		content, what = goodConfig(replicas), fmt.Sprintf("%d replicas", replicas)
	}
	settle(n.plugin)
	return "plugin's config: " + what, replaceFile(n.path("plugin.yaml"), content)
}
