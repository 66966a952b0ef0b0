// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/kubelet"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// profiling reports whether the counter file has profiling fields.
func (e exam) profiling() bool {
	return slices.ContainsFunc(e.fields(), gpu.FieldID.Profiling)
}

// unprofiled explains why there is nothing to check about profiling, or is empty.
func (d *doctor) unprofiled(e exam) string {
	switch {
	case !e.profiling():
		return "not needed: the counter file has no profiling fields (DCGM_FI_PROF_*)"
	case d.cfg.Source == app.SourceSim:
		return "not needed: the node is simulated"
	}
	return ""
}

// remote reports whether DCGM runs in a host engine and not in this process.
func (d *doctor) remote() bool {
	return d.cfg.HostEngine != "" && (d.cfg.Source == "auto" || d.cfg.Source == app.SourceDCGM)
}

// checkPermissions looks for what profiling takes.
func (d *doctor) checkPermissions(_ context.Context, e exam) outcome {
	if text := d.unprofiled(e); text != "" {
		return found(finding{Status: statusOK, Text: text})
	}
	if d.remote() {
		return found(finding{Status: statusOK, Text: "not needed here: the host engine does the profiling, and needs CAP_SYS_ADMIN where it runs"})
	}
	admin, err := sysAdmin(d.proc)
	if err != nil {
		return found(finding{Status: statusWarn, Text: "whether this process has CAP_SYS_ADMIN cannot be told: " + err.Error()})
	}
	refused := slices.ContainsFunc(e.absent, func(a absentField) bool {
		return a.reason == gpu.ReasonNotPermitted && a.id.Profiling()
	})
	switch {
	case admin && refused:
		return found(finding{Status: statusWarn, Text: "CAP_SYS_ADMIN is effective, and profiling is not permitted all the same",
			Remedy: "another program may hold the profiling counters (see profilers); in a virtual machine the host may not allow it"})
	case admin:
		return found(finding{Status: statusOK, Text: "CAP_SYS_ADMIN is effective, which profiling fields need"})
	case refused || e.reading == nil:
		return found(finding{Status: statusWarn, Text: "CAP_SYS_ADMIN is not effective, and profiling fields need it",
			Remedy: grantProfiling(root(d.proc))})
	}
	return found(finding{Status: statusOK, Text: "CAP_SYS_ADMIN is not effective, and the driver does not ask for it"})
}

// capSysAdmin is the capability's bit.
const capSysAdmin = 21

// sysAdmin reports whether CAP_SYS_ADMIN is effective in this process.
func sysAdmin(proc fs.FS) (bool, error) {
	text, err := statusOf(proc, "CapEff:")
	if err != nil {
		return false, err
	}
	mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	if err != nil {
		return false, fmt.Errorf("CapEff in /proc/self/status: %w", err)
	}
	return mask>>capSysAdmin&1 == 1, nil
}

// root reports whether this process is known to be root's: of its user ids, the second is in effect.
func root(proc fs.FS) bool {
	text, err := statusOf(proc, "Uid:")
	ids := strings.Fields(text)
	return err == nil && len(ids) > 1 && ids[1] == "0"
}

// statusOf is the text behind a key of /proc/self/status, such as "CapEff:".
func statusOf(proc fs.FS, key string) (string, error) {
	data, err := fs.ReadFile(proc, "self/status")
	if err != nil {
		return "", err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), key); ok {
			return text, nil
		}
	}
	return "", fmt.Errorf("/proc/self/status has no %s", strings.TrimSuffix(key, ":"))
}

// grantProfiling is what gets a process the profiling fields.
func grantProfiling(root bool) string {
	grant := "add SYS_ADMIN to securityContext.capabilities"
	if !root {
		grant += ", or run as root"
	}
	return grant + "; or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
}

// process is a program that reads GPUs too.
type process struct {
	name string
	pid  int
}

// profilers are programs that may hold the profiling counters. Their names as the kernel has them
// are cut off after 15 bytes, so the command line is what counts.
func profilers() []string {
	return []string{"nv-hostengine", "dcgm-exporter", "gpumeter-exporter", "dcgmproftester12", "dcgmproftester13", "nsys", "ncu"}
}

// otherProfilers finds them among the processes that can be seen.
func otherProfilers(proc fs.FS) ([]process, error) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil, err
	}
	var others []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// A process may end while it is looked at.
		cmdline, err := fs.ReadFile(proc, entry.Name()+"/cmdline")
		if err != nil {
			continue
		}
		program, _, _ := bytes.Cut(cmdline, []byte{0})
		if name := path.Base(string(program)); slices.Contains(profilers(), name) {
			others = append(others, process{name, pid})
		}
	}
	slices.SortFunc(others, func(a, b process) int { return a.pid - b.pid })
	return others, nil
}

// checkProfilers says who else may hold the profiling counters: on GPUs before Hopper only one
// program can have them.
func (d *doctor) checkProfilers(_ context.Context, e exam) outcome {
	if text := d.unprofiled(e); text != "" {
		return found(finding{Status: statusOK, Text: text})
	}
	others, err := otherProfilers(d.proc)
	if err != nil {
		return found(finding{Status: statusInfo, Text: "other programs that profile cannot be looked for: " + err.Error()})
	}
	var out []finding
	for _, p := range others {
		f := finding{Status: statusWarn, Text: fmt.Sprintf("%s (pid %d) runs here; before Hopper only one program can profile a GPU", p.name, p.pid)}
		switch p.name {
		case "nv-hostengine":
			if d.remote() {
				continue
			}
			f.Remedy = "read through it: -r unix:///tmp/nv-hostengine (or where it listens)"
		case "gpumeter-exporter":
			f.Status = statusInfo
			f.Remedy = "profiling fields that this examination does not get may be had by it"
		default:
			f.Remedy = "stop it, or take the DCGM_FI_PROF_* rows out of one of the two"
		}
		out = append(out, f)
	}
	if len(out) == 0 {
		out = append(out, finding{Status: statusOK, Text: "none among the processes that can be seen from here (hostPID shows all)"})
	}
	return found(out...)
}

// checkKubelet asks the kubelet who holds what.
func (d *doctor) checkKubelet(ctx context.Context, e exam) outcome {
	// Whoever examines a node by hand forgets the flag; a socket says that there is a kubelet.
	if _, err := os.Stat(d.cfg.KubeletSocket); err != nil && !d.cfg.Kubernetes && !d.cfg.KubeletSet {
		return found(finding{
			Status: statusInfo, Text: "not asked: pods are not mapped, and there is no " + d.cfg.KubeletSocket,
			Remedy: "nothing to do on a node without Kubernetes; elsewhere --kubernetes, with the socket mounted",
		})
	}
	where := d.cfg.KubeletSocket
	if d.sources.Pretends() {
		if d.sources.Node() == nil {
			return found(finding{Status: statusInfo, Text: "not asked, since there is no simulated node"})
		}
		where = "the simulated kubelet"
		// It ends with this check; its answer is kept.
		go func() { _ = d.sources.ServeKubelet(ctx) }()
		d.sources.AwaitKubelet(ctx)
	}
	client, err := d.sources.DialKubelet()
	if err != nil {
		return found(finding{Status: statusWarn, Text: err.Error()})
	}
	defer client.Close()
	listing, err := client.List(ctx)
	if err != nil {
		f := finding{Status: statusWarn, Text: err.Error()}
		if e, ok := errors.AsType[*kubelet.Error](err); ok {
			f.Text, f.Remedy = fmt.Sprintf("%s on %s: %v", e.Op, e.Socket, e.Err), e.Hint
		}
		return found(f)
	}
	out := []finding{{Status: statusOK, Text: fmt.Sprintf("%s lists %s with %s", where, counted(listing.Pods, "pod"), counted(listing.Containers, "container"))}}
	for _, reason := range slices.Sorted(maps.Keys(listing.Skipped)) {
		out = append(out, skippedFinding(reason, listing.Skipped[reason]))
	}
	return outcome{out, func(e *exam) { e.listing = &listing }}
}

// skippedFinding explains what of the kubelet's answer could not be used.
func skippedFinding(reason string, n int) finding {
	switch reason {
	case kubelet.SkippedAllocatableUnavailable:
		return finding{Status: statusWarn, Text: "it does not say which devices it could hand out, so that replicas that nobody holds are not known",
			Remedy: "this needs a kubelet of 1.28 or newer"}
	case kubelet.SkippedCheckpointUnreadable, kubelet.SkippedCheckpointMalformed, kubelet.SkippedCheckpointUnsettled:
		return finding{Status: statusInfo, Text: "its device checkpoint is of no use (" + reason + "): pods go without UIDs",
			Remedy: "mount the kubelet's device-plugins directory, or name the file with --kubelet-checkpoint"}
	default:
		return finding{Status: statusWarn, Text: fmt.Sprintf("%d entries of its answer could not be used (%s)", n, reason)}
	}
}

// checkPods says how the pods map to GPUs.
func (d *doctor) checkPods(_ context.Context, e exam) outcome {
	if e.listing == nil {
		return found(finding{Status: statusInfo, Text: "not looked at, since the kubelet's answer is not known"})
	}
	pods := describePods(e.listing, nil)
	out := []finding{{Status: statusOK, Text: fmt.Sprintf("%s held by %s", counted(pods.Allocations, "device id"), counted(pods.Holders, "container"))}}
	if len(pods.Advertised) == 0 {
		out = append(out, finding{Status: statusWarn, Text: "no device plugin advertises a GPU to this kubelet",
			Remedy: "see the device plugin's pod; resources of other names are named with --resource-pattern"})
	}
	var advertised []string
	for _, resource := range slices.Sorted(maps.Keys(pods.Advertised)) {
		advertised = append(advertised, fmt.Sprintf("%s %d", resource, pods.Advertised[resource]))
	}
	if advertised != nil {
		out = append(out, finding{Status: statusOK, Text: "device ids that the kubelet can hand out: " + strings.Join(advertised, ", ")})
	}
	return found(out...)
}

// checkDeviceIDs ties the held ids to the GPUs.
func (d *doctor) checkDeviceIDs(_ context.Context, e exam) outcome {
	if e.listing == nil || e.reading == nil {
		return found(finding{Status: statusInfo, Text: "not looked at, since the GPUs or their holders are not known"})
	}
	policy, err := d.cfg.Policy()
	if err != nil {
		return found(finding{Status: statusWarn, Text: err.Error()})
	}
	index := sharing.NewIndex(e.reading.Devices)
	seats := sharing.Seats{}.Observe(e.listing.Time, index, e.listing.Advertised).
		Recall(index, e.listing.Advertised, e.listing.Registered)
	division := sharing.Attribute(sharing.Situation{
		Devices: e.reading.Devices, Observed: true, Allocations: e.listing.Allocations, Seats: seats, Policy: policy,
	})
	var out []finding
	out = append(out, unmatchedFindings(division.Unmatched)...)
	for _, c := range division.Conflicts {
		text := fmt.Sprintf("%s of %s contradicts another allocation (%s) and is not charged", c.Device, holder(c.Loser), c.Kind)
		if c.Winner != (sharing.Holder{}) {
			text += "; " + holder(c.Winner) + " is"
		}
		out = append(out, finding{Status: statusWarn, Text: text, Remedy: "see whether one of the pods has ended; a kubelet before 1.34 lists those too"})
	}
	if len(out) == 0 {
		out = append(out, finding{Status: statusOK, Text: "every device id that is held is one of this node's GPUs, and none is held twice"})
	}
	return outcome{out, func(e *exam) { e.division = &division }}
}

// unmatchedFindings is a line for each reason and resource.
func unmatchedFindings(unmatched []sharing.Unmatched) []finding {
	type kind struct{ reason, resource string }
	ids := make(map[kind][]sharing.Unmatched)
	var kinds []kind
	for _, u := range unmatched {
		k := kind{u.Reason, u.Allocation.Resource}
		if ids[k] == nil {
			kinds = append(kinds, k)
		}
		ids[k] = append(ids[k], u)
	}
	var out []finding
	for _, k := range kinds {
		a := ids[k][0].Allocation
		text := fmt.Sprintf("%s held by %s cannot be tied to a GPU (%s)", a.DeviceID, holder(a.Holder), k.reason)
		if n := len(ids[k]); n > 1 {
			text = fmt.Sprintf("%d ids cannot be tied to a GPU (%s), such as %s held by %s", n, k.reason, a.DeviceID, holder(a.Holder))
		}
		out = append(out, finding{Status: statusWarn, Text: k.resource + ": " + text, Remedy: unmatchedRemedy(k.reason)})
	}
	return out
}

// counted is "1 pod" or "3 pods".
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func holder(h sharing.Holder) string { return h.Namespace + "/" + h.Pod + "/" + h.Container }

func unmatchedRemedy(reason string) string {
	switch reason {
	case sharing.ReasonUnknownDevice, sharing.ReasonNoGPUInstance, sharing.ReasonNoComputeInstance:
		return "the device plugin hands out what is not here: restart it after a repartition, and see that both see the same GPUs"
	case sharing.ReasonClaimUnresolved:
		return "devices of DRA claims are not charged yet"
	case sharing.ReasonAmbiguousDevice, sharing.ReasonAmbiguousInstance:
		return "have the device plugin hand out UUIDs (DEVICE_ID_STRATEGY=uuid)"
	default:
		return "see which plugin hands out such ids; --resource-pattern should name NVIDIA's only"
	}
}

// describePods counts what the kubelet listed; the division may be nil.
func describePods(l *sharing.Listing, d *sharing.Division) *podReport {
	out := &podReport{
		Pods: l.Pods, Containers: l.Containers, Allocations: len(l.Allocations),
		Advertised: map[string]int{}, Skipped: map[string]int{}, Unmatched: []unmatchedID{}, Conflicts: []conflictReport{},
	}
	holders := make(map[sharing.Holder]bool)
	for _, a := range l.Allocations {
		holders[a.Holder] = true
	}
	out.Holders = len(holders)
	for _, a := range l.Advertised {
		out.Advertised[a.Resource]++
	}
	maps.Copy(out.Skipped, l.Skipped)
	if d == nil {
		return out
	}
	for _, u := range d.Unmatched {
		out.Unmatched = append(out.Unmatched, unmatchedID{describeHolder(u.Allocation.Holder), u.Allocation.Resource, u.Allocation.DeviceID, u.Reason})
	}
	for _, c := range d.Conflicts {
		r := conflictReport{holderReport: describeHolder(c.Loser), Kind: c.Kind, UUID: string(c.Device)}
		if c.Winner != (sharing.Holder{}) {
			r.Winner = holder(c.Winner)
		}
		out.Conflicts = append(out.Conflicts, r)
	}
	return out
}

func describeHolder(h sharing.Holder) holderReport {
	return holderReport{h.Namespace, h.Pod, h.Container}
}
