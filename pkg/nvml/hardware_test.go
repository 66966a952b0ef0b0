// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// hardwareVariable asks for the comparison with nvidia-smi, on a node with GPUs:
//
//	GPUMETER_HARDWARE=1 go test -run TestAgainstRealGPUs -v ./pkg/nvml
const hardwareVariable = "GPUMETER_HARDWARE"

// likeSMI is a field with nvidia-smi's word for it, and how far the two may be apart: what is
// measured goes on while both look.
type likeSMI struct {
	id       gpu.FieldID
	word     string
	absolute float64
	relative float64
}

func likeSMIs() (moving, standing []likeSMI) {
	return []likeSMI{
			{fieldGPUTemp, "temperature.gpu", 2, 0}, {fieldMemoryTemp, "temperature.memory", 2, 0},
			{fieldPower, "power.draw", 10, 0.15}, {fieldSMClock, "clocks.sm", 30, 0.05}, {fieldMemClock, "clocks.mem", 30, 0.05},
			{fieldGPUUtil, "utilization.gpu", 20, 0}, {fieldMemCopyUtil, "utilization.memory", 20, 0},
			{fieldFBTotal, "memory.total", 1, 0}, {fieldFBUsed, "memory.used", 64, 0}, {fieldFBFree, "memory.free", 64, 0},
			{fieldFBReserved, "memory.reserved", 1, 0},
		}, []likeSMI{
			{fieldPowerLimitEnforced, "enforced.power.limit", 0.01, 0}, {fieldMaxSMClock, "clocks.max.sm", 0, 0},
			{fieldMaxMemClock, "clocks.max.mem", 0, 0}, {fieldPCIeMaxGen, "pcie.link.gen.max", 0, 0},
			{fieldPCIeMaxWidth, "pcie.link.width.max", 0, 0}, {fieldPCIeWidth, "pcie.link.width.current", 0, 0},
			{310, "ecc.errors.corrected.volatile.total", 0, 0}, {311, "ecc.errors.uncorrected.volatile.total", 0, 0},
			{312, "ecc.errors.corrected.aggregate.total", 0, 0}, {313, "ecc.errors.uncorrected.aggregate.total", 0, 0},
			{390, "retired_pages.single_bit_ecc.count", 0, 0}, {391, "retired_pages.double_bit.count", 0, 0},
			{fieldDriverVersion, "driver_version", 0, 0}, {fieldSerial, "serial", 0, 0}, {fieldVBIOSVersion, "vbios_version", 0, 0},
			{fieldInforomImage, "inforom.img", 0, 0}, {gpu.FieldName, "name", 0, 0}, {fieldPCIBusID, "pci.bus_id", 0, 0},
			{fieldEncUtil, "utilization.encoder", 20, 0}, {fieldDecUtil, "utilization.decoder", 20, 0},
			{fieldAppSMClock, "clocks.applications.graphics", 0, 0}, {fieldAppMemClock, "clocks.applications.memory", 0, 0},
			{fieldPowerLimit, "power.limit", 0.01, 0}, {fieldPowerLimitDefault, "power.default_limit", 0.01, 0},
			{fieldPowerLimitMin, "power.min_limit", 0.01, 0}, {fieldPowerLimitMax, "power.max_limit", 0.01, 0},
			{157, "power.draw.instant", 30, 0.3}, {fieldFanSpeed, "fan.speed", 5, 0}, {fieldPState, "pstate", 0, 0},
			{gpu.FieldClockReasons, "clocks_event_reasons.active", 0, 0},
		}
}

// smi are nvidia-smi's answers by UUID and word.
func smi(t *testing.T, words ...string) map[string]map[string]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nvidia-smi",
		"--query-gpu=uuid,"+strings.Join(words, ","), "--format=csv,noheader,nounits").CombinedOutput()
	if err != nil {
		t.Logf("nvidia-smi does not know one of %v: %v %s", words, err, out)
		return nil
	}
	answers := make(map[string]map[string]string)
	for line := range strings.Lines(string(out)) {
		cells := strings.Split(strings.TrimSpace(line), ", ")
		of := make(map[string]string)
		for i, word := range words {
			if i+1 < len(cells) {
				of[word] = cells[i+1]
			}
		}
		answers[cells[0]] = of
	}
	return answers
}

func TestAgainstRealGPUs(t *testing.T) {
	if os.Getenv(hardwareVariable) == "" {
		t.Skipf("set %s=1 on a node with GPUs and nvidia-smi", hardwareVariable)
	}
	s, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	moving, standing := likeSMIs()
	fields := defaultCounters()
	for _, l := range append(moving, standing...) {
		fields = append(fields, l.id)
	}
	look := func() gpu.Reading {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := s.Read(ctx, fields)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	look()
	time.Sleep(time.Second)
	before := look()
	var words []string
	for _, l := range moving {
		words = append(words, l.word)
	}
	theirs := make(map[string]map[string]string)
	maps.Copy(theirs, smi(t, words...))
	after := look()
	for _, l := range standing {
		for uuid, of := range smi(t, l.word) {
			if theirs[uuid] == nil {
				theirs[uuid] = make(map[string]string)
			}
			theirs[uuid][l.word] = of[l.word]
		}
	}
	for _, line := range s.Facts() {
		t.Log(line)
	}
	for _, trouble := range after.Troubles {
		t.Errorf("trouble: %+v", trouble)
	}
	const times = 20
	began := time.Now()
	for range times {
		look()
	}
	t.Logf("a reading of %d fields takes %v", len(fields), time.Since(began)/times)
	for i, sample := range after.Samples {
		if sample.Entity.Kind != gpu.KindGPU {
			continue
		}
		for _, l := range append(moving, standing...) {
			compare(t, l, valueOf(t, before, i, l.id), valueOf(t, after, i, l.id), theirs[string(sample.Entity.GPU)][l.word])
		}
		for _, id := range fields {
			f, _ := gpu.FieldByID(id)
			t.Logf("%-45s %s", cmp.Or(append(f.Aliases, f.Name)...), show(valueOf(t, after, i, id)))
		}
	}
	compareMIG(t, after)
}

// compare holds one value against nvidia-smi's, which was read between two of ours.
func compare(t *testing.T, l likeSMI, before, after gpu.Value, theirs string) {
	t.Helper()
	absent := theirs == "" || strings.Contains(theirs, "N/A") || strings.Contains(theirs, "Not Supported")
	verdict := "same"
	a, isNumber := before.AsFloat()
	b, _ := after.AsFloat()
	their, err := asNumber(theirs)
	switch text, isText := after.AsText(); {
	case absent && !after.Present():
		verdict = "absent in both"
	case absent != !after.Present():
		verdict = "DIFFERS"
	case isText && !strings.EqualFold(text, theirs):
		verdict = "DIFFERS"
	case isNumber && err != nil && !absent:
		verdict = "DIFFERS"
	case isNumber && err == nil:
		room := math.Max(l.absolute, l.relative*math.Abs(their))
		if their < min(a, b)-room || their > max(a, b)+room {
			verdict = "DIFFERS"
		}
	}
	line := fmt.Sprintf("%-40s nvidia-smi %-28s ours %s, then %s: %s", l.word, theirs, show(before), show(after), verdict)
	if verdict == "DIFFERS" {
		t.Error(line)
		return
	}
	t.Log(line)
}

// asNumber is a number as nvidia-smi writes it: "0x0000000000000001" and "P0" are some.
func asNumber(text string) (float64, error) {
	if hex, ok := strings.CutPrefix(text, "0x"); ok {
		n, err := strconv.ParseUint(hex, 16, 64)
		return float64(n), err
	}
	return strconv.ParseFloat(strings.TrimPrefix(text, "P"), 64)
}

// smiMemory is the part of nvidia-smi's report that has the memory of GPU instances.
type smiMemory struct {
	GPUs []struct {
		UUID  string `xml:"uuid"`
		Parts []struct {
			Instance int    `xml:"gpu_instance_id"`
			Total    string `xml:"fb_memory_usage>total"`
			Used     string `xml:"fb_memory_usage>used"`
		} `xml:"mig_devices>mig_device"`
	} `xml:"gpu"`
}

// instanceMemory is total and used memory in MiB of each GPU instance in nvidia-smi's report.
func instanceMemory(report []byte) (map[gpu.Entity][2]string, error) {
	var smi smiMemory
	if err := xml.Unmarshal(report, &smi); err != nil {
		return nil, err
	}
	out := make(map[gpu.Entity][2]string)
	for _, g := range smi.GPUs {
		for _, p := range g.Parts {
			e := gpu.Entity{Kind: gpu.KindGPUInstance, GPU: gpu.UUID(g.UUID), ID: p.Instance}
			out[e] = [2]string{strings.TrimSuffix(p.Total, " MiB"), strings.TrimSuffix(p.Used, " MiB")}
		}
	}
	return out, nil
}

func TestNvidiaSMIsReportIsRead(t *testing.T) {
	got, err := instanceMemory([]byte(`<nvidia_smi_log><gpu id="0"><uuid>GPU-1</uuid><mig_devices><mig_device><index>0</index>
		<gpu_instance_id>2</gpu_instance_id><fb_memory_usage><total>40448 MiB</total><reserved>0 MiB</reserved><used>37 MiB</used>
		</fb_memory_usage></mig_device></mig_devices></gpu></nvidia_smi_log>`))
	want := gpu.Entity{Kind: gpu.KindGPUInstance, GPU: "GPU-1", ID: 2}
	if err != nil || len(got) != 1 || got[want] != [2]string{"40448", "37"} {
		t.Errorf("%v, %v", got, err)
	}
}

// compareMIG holds the MIG devices against nvidia-smi -L, and their memory against its report.
func compareMIG(t *testing.T, r gpu.Reading) {
	t.Helper()
	report, err := exec.CommandContext(t.Context(), "nvidia-smi", "-q", "-x").Output()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := instanceMemory(report)
	if err != nil {
		t.Fatal(err)
	}
	for i, sample := range r.Samples {
		if their, known := memory[sample.Entity]; known {
			for n, id := range []gpu.FieldID{fieldFBTotal, fieldFBUsed} {
				v := valueOf(t, r, i, id)
				compare(t, likeSMI{id, fmt.Sprintf("memory %d of instance %d", n, sample.Entity.ID), 64, 0}, v, v, their[n])
			}
		}
	}
	out, err := exec.CommandContext(t.Context(), "nvidia-smi", "-L").Output()
	if err != nil {
		t.Fatal(err)
	}
	theirs := make(map[string]string)
	for _, m := range regexp.MustCompile(`MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-\S+)\)`).FindAllStringSubmatch(string(out), -1) {
		theirs[m[2]] = m[1]
	}
	ours := 0
	for _, d := range r.Devices {
		if !d.IsMIG() {
			continue
		}
		ours++
		if theirs[string(d.UUID)] != d.Profile.Name {
			t.Errorf("%s is %s, for nvidia-smi %s", d.UUID, d.Profile.Name, theirs[string(d.UUID)])
		}
	}
	if ours != len(theirs) {
		t.Errorf("%d MIG devices, for nvidia-smi %d", ours, len(theirs))
	}
}
