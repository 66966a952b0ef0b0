// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// untyped is a field value whose type the driver does not set.
func untyped(n uint64) fieldOf {
	return func(*board, uint32) (nvml.ValueType, uint64, nvml.Return) { return 0, n, nvml.SUCCESS }
}

// Drivers do not set the type of error counts, and 0 is that of real numbers.
func TestErrorCountsWithoutATypeAreWholeNumbers(t *testing.T) {
	m := newMachine(modelH100())
	m.change(0, func(b *board) {
		b.fields[nvml.FI_DEV_ECC_SBE_VOL_TOTAL] = untyped(5)
		b.fields[nvml.FI_DEV_ECC_DBE_VOL_TOTAL] = untyped(0)
		b.fields[nvml.FI_DEV_ECC_SBE_AGG_TOTAL] = untyped(1 << 40)
	})
	r := read(t, m.source(t, Config{}), 310, 311, 312)
	for id, want := range map[gpu.FieldID]string{310: "5", 311: "0", 312: "1099511627776"} {
		if got := show(valueOf(t, r, 0, id)); got != want {
			t.Errorf("field %d is %s, want %s", id, got, want)
		}
	}
}

// With ECC off a T4's driver leaves what ECC counts as it got it, and calls that a success.
func TestWithoutECCErrorsAreNotCountedAsNone(t *testing.T) {
	m := newMachine(modelA100())
	m.change(0, func(b *board) {
		b.untouched = []uint32{nvml.FI_DEV_ECC_SBE_VOL_TOTAL, nvml.FI_DEV_ECC_DBE_AGG_TOTAL, nvml.FI_DEV_RETIRED_DBE}
	})
	r := read(t, m.source(t, Config{}), 310, 311, 313, 391)
	for id, want := range map[gpu.FieldID]string{310: "not_supported", 311: "32", 313: "not_supported", 391: "not_supported"} {
		if got := show(valueOf(t, r, 0, id)); got != want {
			t.Errorf("field %d is %s, want %s", id, got, want)
		}
	}
}

func TestAFieldThatFailsInACallThatFailsHasItsOwnReason(t *testing.T) {
	v := nvml.FieldValue{NvmlReturn: uint32(nvml.ERROR_NO_PERMISSION)}
	if got := fieldReturn(nvml.ERROR_UNKNOWN, &v); got != nvml.ERROR_NO_PERMISSION {
		t.Errorf("it is %v", returned(got))
	}
}

// Some drivers have the newer form of the memory query for cards only.
func TestMemoryIsAskedForInTheOlderWayWhereTheNewerFails(t *testing.T) {
	m := newMachine(modelH100())
	mixed(m, 0)
	m.change(0, func(b *board) { b.refused["nvmlDeviceGetMemoryInfo_v2"] = nvml.ERROR_NOT_SUPPORTED })
	m.change(1, func(b *board) { b.refused["nvmlDeviceGetMemoryInfo_v2"] = nvml.ERROR_UNKNOWN })
	m.change(2, func(b *board) { b.refused["nvmlDeviceGetMemoryInfo_v2"] = nvml.ERROR_NO_PERMISSION })
	r := read(t, m.source(t, Config{}), 250, 251, 252, 253)
	for sample, want := range map[int][]string{
		0: {"scope", "scope", "scope", "scope"},
		1: {"40448", "40445", "3", "not_supported"},
		4: {"81559", "79059", "2500", "not_supported"},
		5: {"not_permitted", "not_permitted", "not_permitted", "not_permitted"},
	} {
		var got []string
		for _, v := range r.Samples[sample].Values {
			got = append(got, show(v))
		}
		if !slices.Equal(got, want) {
			t.Errorf("total, free, used and reserved of sample %d are %v, want %v", sample, got, want)
		}
	}
}

// Drivers before R520 count the errors of a link as field values only.
func TestLinkErrorsAreThoseOfTheLinksThatAreThere(t *testing.T) {
	m := newMachine(modelA100())
	m.change(0, func(b *board) {
		b.refused["nvmlDeviceGetNvLinkErrorCounter"] = nvml.ERROR_NOT_SUPPORTED
		b.fields[nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0] = counter(41)
		b.fields[nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L11] = counter(43)
	})
	m.change(1, func(b *board) { b.refused["nvmlDeviceGetNvLinkErrorCounter"] = nvml.ERROR_INVALID_ARGUMENT })
	m.change(2, func(b *board) { b.refused["nvmlDeviceGetNvLinkErrorCounter"] = nvml.ERROR_NO_PERMISSION })
	r := read(t, m.source(t, Config{}), 400, 474, 401, 481)
	for sample, want := range [][]string{
		{"41", "43", "not_supported", "not_supported"},
		{"not_supported", "not_supported", "not_supported", "not_supported"},
		{"not_permitted", "not_permitted", "not_permitted", "not_permitted"},
		{"2", "111", "12", "152"},
	} {
		var got []string
		for _, v := range r.Samples[sample].Values {
			got = append(got, show(v))
		}
		if !slices.Equal(got, want) {
			t.Errorf("GPU %d has %v, want %v", sample, got, want)
		}
	}
}

// Among the samples of processes there can be some that nobody filled.
func TestASampleOfTheFarFutureDoesNotSilenceTheOthers(t *testing.T) {
	m := newMachine(modelH100())
	now := uint64(time.Now().UnixMicro())
	m.change(0, func(b *board) {
		b.processes = []nvml.ProcessInfo{{Pid: 1, GpuInstanceId: noInstance}}
		b.samples = []nvml.ProcessUtilizationSample{
			{Pid: 1, TimeStamp: now, SmUtil: 50}, {Pid: 1, TimeStamp: 1 << 62, SmUtil: 3}, {Pid: 2, TimeStamp: now + 5, SmUtil: 1 << 20},
		}
	})
	s := m.source(t, Config{})
	if v := read(t, s).Processes[0].SMUtil; show(v) != "0.5" {
		t.Errorf("its utilisation is %s", show(v))
	}
	m.change(0, func(b *board) {
		b.samples = append(b.samples, nvml.ProcessUtilizationSample{Pid: 1, TimeStamp: now + 10, SmUtil: 20})
	})
	if v := read(t, s).Processes[0].SMUtil; show(v) != "0.2" {
		t.Errorf("its next utilisation is %s", show(v))
	}
}

func TestComputeModesHaveDCGMsNumbers(t *testing.T) {
	got := make(map[nvml.ComputeMode]string)
	for _, m := range []nvml.ComputeMode{nvml.COMPUTEMODE_DEFAULT, nvml.COMPUTEMODE_PROHIBITED, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS} {
		got[m] = show(computeMode(m))
	}
	want := map[nvml.ComputeMode]string{nvml.COMPUTEMODE_DEFAULT: "0", nvml.COMPUTEMODE_PROHIBITED: "1", nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: "2"}
	if !maps.Equal(got, want) {
		t.Errorf("they are %v, want %v", got, want)
	}
}

// A guest for computing has a licence of another kind than one for drawing; a card without
// licences is not asked each time.
func TestALicenceOfAnyKindIsOne(t *testing.T) {
	m := newMachine(modelA100())
	for i, state := range []uint32{0, 1} {
		m.change(i, func(b *board) {
			b.licence.IsGridLicenseSupported, b.licence.LicensableFeaturesCount = 1, 1
			b.licence.GridLicensableFeatures[0] = nvml.GridLicensableFeature{
				FeatureCode: uint32(nvml.GRID_LICENSE_FEATURE_CODE_COMPUTE), FeatureState: state,
			}
		})
	}
	s := m.source(t, Config{})
	for range 3 {
		r := read(t, s, fieldVGPULicense)
		got := []string{show(r.Samples[0].Values[0]), show(r.Samples[1].Values[0]), show(r.Samples[2].Values[0])}
		if diff := cmp.Diff([]string{"0", "1", "0"}, got); diff != "" {
			t.Errorf("licences (-want +got):\n%s", diff)
		}
	}
	for i, want := range []int{3, 3, 1} {
		m.change(i, func(b *board) {
			if n := b.calls["nvmlDeviceGetGridLicensableFeatures"]; n != want {
				t.Errorf("GPU %d was asked for its licence %d times, want %d", i, n, want)
			}
		})
	}
}
