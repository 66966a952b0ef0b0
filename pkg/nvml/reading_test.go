// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// defaultCounters are the active rows of the counter files, and those that stand there as examples.
func defaultCounters() []gpu.FieldID {
	return []gpu.FieldID{
		1, 100, 101, 140, 150, 155, 156, 202, 203, 204, 206, 207, 230, 240, 241, 251, 252, 253, 310, 311, 312, 313,
		390, 391, 392, 393, 394, 395, 400, 429, 449, 526, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 1010,
	}
}

// read is one reading within a second.
func read(t testing.TB, s *Source, fields ...gpu.FieldID) gpu.Reading {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	r, err := s.Read(ctx, fields)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// valueOf is the value of a field of the sample at a place.
func valueOf(t testing.TB, r gpu.Reading, sample int, id gpu.FieldID) gpu.Value {
	t.Helper()
	i := slices.Index(r.Fields, id)
	if i < 0 || sample >= len(r.Samples) {
		t.Fatalf("no field %d of sample %d among %d", id, sample, len(r.Samples))
	}
	return r.Samples[sample].Values[i]
}

// show is a value as a test states it.
func show(v gpu.Value) string {
	if n, ok := v.AsInt(); ok {
		return fmt.Sprint(n)
	}
	if f, ok := v.AsFloat(); ok {
		return fmt.Sprintf("%.4g", f)
	}
	if s, ok := v.AsText(); ok {
		return fmt.Sprintf("%q", s)
	}
	return v.Reason().String()
}

func TestEveryDefaultCounterHasDCGMsUnit(t *testing.T) {
	want := map[gpu.FieldID]string{
		gpu.FieldDriverVersion: `"550.54.15"`,
		100:                    "1001", 101: "1002", // MHz
		140: "51", 150: "41", // C
		155: "201.5", 157: "250.2", // W
		202: "3", 203: "55", 204: "33", 206: "7", 207: "9",
		230: "0", 240: "1000000000", 241: "2000000000", // ns
		250: "81559", 251: "79059", 252: "2000", 253: "500", 254: "0.02467", // MiB
		310: "31", 311: "32", 312: "33", 313: "34",
		390: "21", 391: "22", 392: "0", 393: "12", 394: "11", 395: "1", 396: "0",
		400: "2", 429: "42", 449: "40000", // units of 1000 KiB/s
		526: "0", 112: "4", 1523: "0",
		1001: "0.9", 1002: "0.8", 1003: "0.4", 1004: "0.6", 1005: "0.5", 1006: "0.01", 1007: "0.2", 1008: "0.02",
		1009: "1572864", 1010: "2621440", 1011: "1073741824", 1012: "not_supported", // bytes/s
		1017: "0.12", 1018: "not_supported",
		2: `"12.550.54.15"`, 4: "8", 5: "12040", 50: `"NVIDIA H100 80GB HBM3"`, 51: `"NVIDIA"`, 53: `"1650922012345"`,
		55: "1", 57: `"00000000:02:00.0"`, 58: "590352606", 63: "589824", 67: "0", 69: "0", 85: `"96.00.89.00.01"`, 94: "1",
		90: "131072", 92: "1024", 93: "130048", 113: "2001", 158: "91", 164: "700", 190: "0", 191: "not_supported",
		300: "1", 301: "0", 314: "2", 345: "2", 408: "142", 451: "62", 481: "152", 493: "171",
		65: "2", 110: "3000", 1044: "3145728", 1075: "5242880", 1040: "not_supported",
		825: "1000", 879: "3000", 440: "4000", 475: "28000", 843: "10000", 897: "30000",
	}
	synctest.Test(t, func(t *testing.T) {
		s := newMachine(modelH100()).source(t, Config{})
		var fields []gpu.FieldID
		for id := range want {
			fields = append(fields, id)
		}
		fields = append(fields, fieldEnergy)
		want[fieldEnergy] = "3010000"
		slices.Sort(fields)
		first := read(t, s, fields...)
		for _, id := range []gpu.FieldID{449, 1001, 1009} {
			if v := valueOf(t, first, 1, id); v.Reason() != gpu.ReasonBlank {
				t.Errorf("before there is anything to compare with, field %d is %s", id, show(v))
			}
		}
		time.Sleep(10 * time.Second)
		r := read(t, s, fields...)
		for _, id := range fields {
			if got := show(valueOf(t, r, 1, id)); got != want[id] {
				t.Errorf("field %d is %s, want %s", id, got, want[id])
			}
		}
		if before := valueOf(t, first, 1, fieldEnergy); show(before) != "1000000" {
			t.Errorf("the energy began at %s mJ", show(before))
		}
		if o := s.Origin(); o.Library != "libnvidia-ml 12.550.54.15" || o.Driver != "550.54.15" || r.Origin != o || r.Source != "nvml" {
			t.Errorf("the origin is %+v, the reading's %+v of %q", o, r.Origin, r.Source)
		}
	})
}

// Whatever is asked of whatever model: a value or a reason, and Supports knows which fields can have one.
func TestTheWholeCatalogueIsAnsweredOrAbsent(t *testing.T) {
	for _, of := range models() {
		t.Run(of.name, func(t *testing.T) {
			m := newMachine(of)
			m.boards[1].partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE}, seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE, start: 4})
			s := m.source(t, Config{})
			fields := []gpu.FieldID{64999}
			for _, f := range gpu.Fields() {
				fields = append(fields, f.ID)
			}
			read(t, s, fields...)
			time.Sleep(gpmClosest)
			r := read(t, s, fields...)
			present := 0
			for _, sample := range r.Samples {
				for i, v := range sample.Values {
					f, _ := gpu.FieldByID(fields[i])
					if v.Reason() == gpu.ReasonError {
						// The mock has no such function.
						continue
					}
					_, isText := v.AsText()
					_, isInt := v.AsInt()
					wrong := f.Type == gpu.FieldInt && !isInt || f.Type == gpu.FieldFloat && (isInt || isText) || f.Type == gpu.FieldText && !isText
					if v.Present() && wrong {
						t.Errorf("field %d (%s) of %+v is %s", f.ID, f.Name, sample.Entity, show(v))
					}
					if v.Present() && !s.Supports(fields[i]) {
						t.Errorf("field %d is answered, and Supports does not know it", fields[i])
					}
					if v.Present() {
						present++
					}
				}
			}
			if present < 8*60 {
				t.Errorf("only %d values are present", present)
			}
		})
	}
}

func TestSupportsKnowsWhatNVMLHas(t *testing.T) {
	s := newMachine(modelA100()).source(t, Config{})
	for _, id := range append(defaultCounters(), gpu.FieldXIDErrorsTotal, gpu.FieldP2PStatus, 1017, 1033, 346, 1507, 1523, 1525) {
		if !s.Supports(id) {
			t.Errorf("field %d is not supported", id)
		}
	}
	for _, id := range []gpu.FieldID{0, 3, 60, 205, 350, 1100, 64999, gpu.FieldHealthStatus} {
		if s.Supports(id) {
			t.Errorf("field %d is supported", id)
		}
	}
}

// A mock machine as it comes panics in whatever it does not have.
func TestABindingThatPanicsCostsTheFieldOnly(t *testing.T) {
	var log strings.Builder
	mock := dgxh100.New()
	s, err := open(Config{Log: slog.New(slog.NewTextHandler(&log, nil))},
		&library{Interface: mock, lookup: func(string) error { return nil }}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 {
		r := read(t, s, 50, 150, 155)
		if len(r.Devices) != 8 || len(r.Samples) != 8 {
			t.Fatalf("%d devices, %d samples", len(r.Devices), len(r.Samples))
		}
		if name, temp := valueOf(t, r, 7, 50), valueOf(t, r, 7, 150); !name.Present() || temp.Reason() != gpu.ReasonError {
			t.Errorf("the name is %s, the temperature %s", show(name), show(temp))
		}
	}
	if n := strings.Count(log.String(), "nvmlDeviceGetTemperature"); n != 8 {
		t.Errorf("the panic was logged %d times for 8 GPUs:\n%s", n, log.String())
	}
}

func TestAnErrorOfOneCallCostsItsFieldsAndKeepsTheReason(t *testing.T) {
	for ret, want := range map[nvml.Return]gpu.Reason{
		nvml.ERROR_NOT_SUPPORTED: gpu.ReasonNotSupported, nvml.ERROR_NO_PERMISSION: gpu.ReasonNotPermitted,
		nvml.ERROR_NOT_FOUND: gpu.ReasonNotFound, nvml.ERROR_TIMEOUT: gpu.ReasonTimeout, nvml.ERROR_UNKNOWN: gpu.ReasonError,
		nvml.ERROR_NO_DATA: gpu.ReasonBlank, nvml.ERROR_FUNCTION_NOT_FOUND: gpu.ReasonNotSupported, 77: gpu.ReasonError,
		nvml.ERROR_INVALID_ARGUMENT: gpu.ReasonError, nvml.ERROR_RESET_REQUIRED: gpu.ReasonError,
	} {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		m.change(2, func(b *board) { b.refused["nvmlDeviceGetPowerUsage"] = ret })
		r := read(t, s, 150, 155, 156)
		if v := valueOf(t, r, 2, 155); v.Reason() != want {
			t.Errorf("a call that returns %d (%v) leaves %s, want %s", ret, returned(ret), show(v), want)
		}
		if a, b := valueOf(t, r, 2, 150), valueOf(t, r, 3, 155); !a.Present() || !b.Present() || len(r.Troubles) > 0 {
			t.Errorf("because of %v: %s, %s, %+v", returned(ret), show(a), show(b), r.Troubles)
		}
	}
}

func TestImplausibleNumbersAreNoValues(t *testing.T) {
	ones := func(kind nvml.ValueType) fieldOf {
		return func(*board, uint32) (nvml.ValueType, uint64, nvml.Return) { return kind, ^uint64(0), nvml.SUCCESS }
	}
	m := newMachine(modelH100())
	m.change(0, func(b *board) {
		b.fields[nvml.FI_DEV_MEMORY_TEMP] = ones(nvml.VALUE_TYPE_UNSIGNED_INT)
		b.fields[nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION] = ones(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
		b.fields[nvml.FI_DEV_POWER_INSTANT] = ones(nvml.VALUE_TYPE_UNSIGNED_INT)
		b.fields[nvml.FI_DEV_REMAPPED_COR] = ones(nvml.VALUE_TYPE_DOUBLE)
		b.fields[nvml.FI_DEV_REMAPPED_UNC] = ones(99)
		b.gpm[nvml.GPM_METRIC_SM_UTIL] = 808334905
		b.gpm[nvml.GPM_METRIC_GRAPHICS_UTIL] = 100.4
	})
	s := m.source(t, Config{})
	read(t, s, 1001, 1002)
	time.Sleep(gpmClosest)
	r := read(t, s, 140, 156, 157, 393, 394, 1001, 1002)
	for id, want := range map[gpu.FieldID]string{
		140: "implausible", 156: "implausible", 157: "implausible", 394: "implausible", 393: "error", 1001: "1", 1002: "implausible",
	} {
		if got := show(valueOf(t, r, 0, id)); got != want {
			t.Errorf("field %d is %s, want %s", id, got, want)
		}
	}
}

func TestFieldsThatDoNotChangeAreReadOnce(t *testing.T) {
	m := newMachine(modelH100())
	s := m.source(t, Config{})
	for range 5 {
		r := read(t, s, 53, 85, 150)
		if v := valueOf(t, r, 0, 53); show(v) != `"1650922012345"` {
			t.Fatalf("the serial number is %s", show(v))
		}
	}
	m.change(0, func(b *board) {
		if b.calls["nvmlDeviceGetSerial"] != 1 || b.calls["nvmlDeviceGetTemperature"] != 5 {
			t.Errorf("calls: %v", b.calls)
		}
	})
}

func TestAFieldThatIsAskedTwiceHasTwoColumns(t *testing.T) {
	s := newMachine(modelH100()).source(t, Config{})
	r := read(t, s, 155, 150, 155)
	if a, b := r.Samples[0].Values[0], r.Samples[0].Values[2]; show(a) != "200.5" || a != b {
		t.Errorf("power is %s and %s", show(a), show(b))
	}
}

func TestAnOlderLibraryHasOtherWaysOrNone(t *testing.T) {
	m := newMachine(modelH100())
	for _, name := range []string{
		"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMemoryInfo_v2", "nvmlGpmMetricsGet", "nvmlEventSetCreate",
		"nvmlDeviceGetMigMode", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
		"nvmlDeviceGetComputeRunningProcesses",
	} {
		m.missing[name] = true
	}
	s := m.source(t, Config{})
	r := read(t, s, 112, 230, 251, 252, 253, 1001)
	for id, want := range map[gpu.FieldID]string{
		112: "32", 230: "not_supported", 251: "80059", 252: "1500", 253: "not_supported", 1001: "not_supported",
	} {
		if got := show(valueOf(t, r, 0, id)); got != want {
			t.Errorf("field %d is %s, want %s", id, got, want)
		}
	}
	facts := strings.Join(s.Facts(), "\n")
	for _, want := range []string{"does not have: [nvmlDeviceGetComputeRunningProcesses_v3", "XIDs are not heard"} {
		if !strings.Contains(facts, want) {
			t.Errorf("the facts do not say %q:\n%s", want, facts)
		}
	}
}

func TestFactsAreForPeople(t *testing.T) {
	m := newMachine(modelH100())
	m.boards[1].partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE}, seat{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE, start: 4})
	m.change(2, func(b *board) { b.lost = true })
	s := m.source(t, Config{})
	read(t, s, 1001)
	m.change(3, func(b *board) { b.lost = true })
	read(t, s, 1001)
	facts := strings.Join(s.Facts(), "\n")
	for _, want := range []string{
		"library /pretend/libnvidia-ml.so.1, NVML 12.550.54.15", "driver 550.54.15, CUDA 12.4, 8 GPUs", "GPU 0 GPU-",
		"NVIDIA H100 80GB HBM3 at 00000000:01:00.0, with profiling", "MIG with 2 devices", ", lost",
	} {
		if !strings.Contains(facts, want) {
			t.Errorf("the facts lack %q:\n%s", want, facts)
		}
	}
}

func TestANodeWithoutGPUsIsRead(t *testing.T) {
	m := newMachine(modelH100())
	m.boards = nil
	s := m.source(t, Config{})
	if r := read(t, s, 155); len(r.Devices)+len(r.Samples)+len(r.Troubles) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestPartsAreOneCardAndItsMIGDevices(t *testing.T) {
	m := newMachine(modelH200())
	m.boards[1].partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE}, seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, start: 4})
	s := m.source(t, Config{})
	parts, err := s.Parts(t.Context(), gpu.UUID(m.boards[1].uuid))
	if err != nil || len(parts) != 3 || parts[0].IsMIG() || parts[1].Profile.Name != "3g.71gb" || parts[2].Profile.Name != "1g.18gb+me" {
		t.Errorf("%+v, %v", parts, err)
	}
	if sets, _ := m.leaks(); sets != 0 {
		t.Error("who only describes GPUs does not listen to them")
	}
	if _, err := s.Parts(t.Context(), "GPU-of-another-node"); err == nil || !strings.Contains(err.Error(), "knows no such GPU") {
		t.Errorf("an unknown GPU: %v", err)
	}
	m.hang(1)
	defer m.unhang(1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Parts(ctx, gpu.UUID(m.boards[1].uuid)); err == nil || !strings.Contains(err.Error(), "has not come back") {
		t.Errorf("a GPU that hangs: %v", err)
	}
	if parts, err := s.Parts(t.Context(), gpu.UUID(m.boards[0].uuid)); err != nil || len(parts) != 1 {
		t.Errorf("another GPU meanwhile: %+v, %v", parts, err)
	}
}

func TestPartsBetweenReadingsDoNotDisturbThem(t *testing.T) {
	m := newMachine(modelH100())
	s := m.source(t, Config{})
	read(t, s, 1001)
	time.Sleep(gpmClosest)
	if _, err := s.Parts(t.Context(), gpu.UUID(m.boards[0].uuid)); err != nil {
		t.Fatal(err)
	}
	if v := valueOf(t, read(t, s, 1001), 0, 1001); show(v) != "0.9" {
		t.Errorf("the sample to compare with is gone: %s", show(v))
	}
}

func TestAReadThatIsOverSaysSo(t *testing.T) {
	s := newMachine(modelH100()).source(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Read(ctx, defaultCounters()); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled read: %v", err)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if _, err := s.Read(late, defaultCounters()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a late read: %v", err)
	}
}
