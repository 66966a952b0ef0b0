// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// A version word is the size of its struct and, in the highest byte, the number of its
// layout. The compiler holds the words against the structs that are declared; this table
// holds them against the sizes that DCGM documents, which nobody changes by accident here.
func TestVersionWordsAreTheSizeAndNumberOfDCGMsStructs(t *testing.T) {
	want := map[string]struct{ size, number uint32 }{
		"CONNECT_V2_PARAMS":        {16, 2},
		"START_EMBEDDED_V2_PARAMS": {80, 2},
		"VERSION_INFO":             {516, 2},
		"MODULE_STATUSES":          {136, 1},
		"DEVICE_ATTRIBUTES":        {5220, 3},
		"MIG_HIERARCHY":            {73480, 2},
		"CPU_HIERARCHY":            {1160, 1},
		"NVLINK_STATUS":            {14780, 4},
		"NVLINK_P2P_STATUS":        {4232, 1},
		"DEVICE_TOPOLOGY":          {448, 1},
		"PROF_METRIC_GROUPS":       {1376, 3},
		"HEALTH_SET_PARAMS":        {40, 2},
		"HEALTH_RESPONSE":          {1069068, 5},
		"FIELD_VALUE":              {4120, 1},
	}
	header, err := os.ReadFile("binding.h")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`VERSION_(\w+) = (0x[0-9a-f]{8}),`).FindAllStringSubmatch(string(header), -1)
	if len(found) != len(want) {
		t.Errorf("binding.h states %d version words, the table has %d", len(found), len(want))
	}
	for _, m := range found {
		word, err := strconv.ParseUint(m[2], 0, 32)
		if err != nil {
			t.Fatal(err)
		}
		if w, ok := want[m[1]]; !ok || uint32(word) != w.size|w.number<<24 {
			t.Errorf("%s is %#08x, want size %d and number %d", m[1], word, w.size, w.number)
		}
	}
}

func TestReturnCodesAreDCGMs(t *testing.T) {
	for code, want := range map[int32]int32{
		stOK: 0, stMemory: -4, stNotSupported: -6, stUninitialized: -10, stTimeout: -11, stVersionMismatch: -12,
		stUnknownField: -13, stNoData: -14, stStaleData: -15, stNotWatched: -16, stNoPermission: -17, stGPUIsLost: -18,
		stConnectionNotValid: -21, stGPUNotSupported: -22, stMaxLimit: -24, stRequiresRoot: -29,
		stInsufficientSize: -31, stFieldUnsupportedByAPI: -32, stModuleNotLoaded: -33, stProfilingNotSupported: -36,
		stInsufficientDriver: -44, stNVMLNotLoaded: -56, stNVMLDriverTimeout: -57, stGPUsDetached: -67,
	} {
		if code != want {
			t.Errorf("a return code is %d, want %d", code, want)
		}
	}
	for group, want := range map[entityGroup]int32{
		groupNone: 0, groupGPU: 1, groupVGPU: 2, groupSwitch: 3, groupGPUInstance: 4, groupComputeInstance: 5,
		groupLink: 6, groupCPU: 7, groupCPUCore: 8, groupConnectX: 9,
	} {
		if int32(group) != want {
			t.Errorf("entity group %s is %d, want %d", group, int32(group), want)
		}
	}
	if gpuLost != 4 || gpuDetached != 7 || linkUp != 3 {
		t.Errorf("lost %d, detached %d, link up %d", gpuLost, gpuDetached, linkUp)
	}
}

func TestErrorsAreCountedByKind(t *testing.T) {
	want := map[int32]string{
		stConnectionNotValid: "connection", stUninitialized: "connection",
		stTimeout: "timeout", stNVMLDriverTimeout: "timeout",
		stGPUIsLost: "lost", stGPUsDetached: "lost",
		stNoPermission: "permission", stRequiresRoot: "permission",
		stNotSupported: "not_supported", stUnknownField: "not_supported", stModuleNotLoaded: "not_supported",
		stProfilingNotSupported: "not_supported", stFieldUnsupportedByAPI: "not_supported",
		stMemory: "error", stMaxLimit: "error", -3: "error", -999: "error",
	}
	for code, kind := range want {
		err := &returnError{call: "dcgmX", code: code}
		if got := err.Kind(); got != kind {
			t.Errorf("code %d is of kind %q, want %q", code, got, kind)
		}
		if wrapped := fmt.Errorf("reading: %w", err); returned(wrapped) != code {
			t.Errorf("the code of %q is %d, want %d", wrapped, returned(wrapped), code)
		}
	}
	if code := returned(errMissing); code != 0 {
		t.Errorf("an error that is not DCGM's has the code %d", code)
	}
}

func TestAnErrorSaysWhatOnWhatWhyAndWhatToDo(t *testing.T) {
	err := &returnError{call: "dcgmWatchFields", on: "group 5, field group 7", code: stModuleNotLoaded, text: "This request is serviced by a module of DCGM that is not currently loaded"}
	for _, part := range []string{"dcgmWatchFields", "group 5, field group 7", "not currently loaded", "-33", "installed"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if bare := (&returnError{call: "dcgmX", code: -999}).Error(); bare != "dcgmX: unknown error (-999)" {
		t.Errorf("without a text the error is %q", bare)
	}
}

func TestBlankValuesKeepTheirReason(t *testing.T) {
	real := func(v float64) uint64 { return math.Float64bits(v) }
	for name, c := range map[string]struct {
		kind   gpu.FieldType
		status int32
		bits   uint64
		text   string
		want   gpu.Value
	}{
		"a number":                        {kind: gpu.FieldInt, bits: 41, want: gpu.Int(41)},
		"a negative number":               {kind: gpu.FieldInt, bits: math.MaxUint64, want: gpu.Int(-1)},
		"the largest number":              {kind: gpu.FieldInt, bits: 0x7fffffffffffffef, want: gpu.Int(0x7fffffffffffffef)},
		"no number":                       {kind: gpu.FieldInt, bits: 0x7ffffffffffffff0, want: gpu.Absent(gpu.ReasonBlank)},
		"a number not found":              {kind: gpu.FieldInt, bits: 0x7ffffffffffffff1, want: gpu.Absent(gpu.ReasonNotFound)},
		"a number not supported":          {kind: gpu.FieldInt, bits: 0x7ffffffffffffff2, want: gpu.Absent(gpu.ReasonNotSupported)},
		"a number not permitted":          {kind: gpu.FieldInt, bits: 0x7ffffffffffffff3, want: gpu.Absent(gpu.ReasonNotPermitted)},
		"a number beyond the sentinels":   {kind: gpu.FieldInt, bits: 0x7fffffffffffffff, want: gpu.Absent(gpu.ReasonBlank)},
		"a counter at a 32-bit sentinel":  {kind: gpu.FieldInt, bits: 2147483634, want: gpu.Int(2147483634)},
		"a real":                          {kind: gpu.FieldFloat, bits: real(0.25), want: gpu.Float(0.25)},
		"a negative real":                 {kind: gpu.FieldFloat, bits: real(-0.25), want: gpu.Float(-0.25)},
		"the largest real":                {kind: gpu.FieldFloat, bits: real(math.Nextafter(1<<47, 0)), want: gpu.Float(math.Nextafter(1<<47, 0))},
		"no real":                         {kind: gpu.FieldFloat, bits: real(140737488355328.0), want: gpu.Absent(gpu.ReasonBlank)},
		"a real not found":                {kind: gpu.FieldFloat, bits: real(140737488355329.0), want: gpu.Absent(gpu.ReasonNotFound)},
		"a real not supported":            {kind: gpu.FieldFloat, bits: real(140737488355330.0), want: gpu.Absent(gpu.ReasonNotSupported)},
		"a real not permitted":            {kind: gpu.FieldFloat, bits: real(140737488355331.0), want: gpu.Absent(gpu.ReasonNotPermitted)},
		"a real beyond the sentinels":     {kind: gpu.FieldFloat, bits: real(1e300), want: gpu.Absent(gpu.ReasonBlank)},
		"no number at all":                {kind: gpu.FieldFloat, bits: real(math.NaN()), want: gpu.Absent(gpu.ReasonImplausible)},
		"an infinity":                     {kind: gpu.FieldFloat, bits: real(math.Inf(1)), want: gpu.Absent(gpu.ReasonImplausible)},
		"an infinity below":               {kind: gpu.FieldFloat, bits: real(math.Inf(-1)), want: gpu.Absent(gpu.ReasonImplausible)},
		"a text":                          {kind: gpu.FieldText, text: "570.86.15", want: gpu.Text("570.86.15")},
		"an empty text":                   {kind: gpu.FieldText, want: gpu.Text("")},
		"a text with brackets":            {kind: gpu.FieldText, text: "<<<", want: gpu.Text("<<<")},
		"no text":                         {kind: gpu.FieldText, text: "<<<NULL>>>", want: gpu.Absent(gpu.ReasonBlank)},
		"a text not found":                {kind: gpu.FieldText, text: "<<<NOT_FOUND>>>", want: gpu.Absent(gpu.ReasonNotFound)},
		"a text not supported":            {kind: gpu.FieldText, text: "<<<NOT_SUPPORTED>>>", want: gpu.Absent(gpu.ReasonNotSupported)},
		"a text not permitted":            {kind: gpu.FieldText, text: "<<<NOT_PERM>>>", want: gpu.Absent(gpu.ReasonNotPermitted)},
		"a blob":                          {kind: gpu.FieldBinary, bits: 1, want: gpu.Absent(gpu.ReasonNotSupported)},
		"a type of the future":            {kind: gpu.FieldUnknown, bits: 1, want: gpu.Absent(gpu.ReasonError)},
		"no sample yet":                   {kind: gpu.FieldInt, status: stNoData, bits: 0x7ffffffffffffff0, want: gpu.Absent(gpu.ReasonBlank)},
		"a stale sample":                  {kind: gpu.FieldInt, status: stStaleData, bits: 41, want: gpu.Absent(gpu.ReasonStale)},
		"a field that is not watched":     {kind: gpu.FieldInt, status: stNotWatched, bits: 0x7ffffffffffffff0, want: gpu.Absent(gpu.ReasonNotFound)},
		"a GPU that is lost":              {kind: gpu.FieldInt, status: stGPUIsLost, bits: 0x7ffffffffffffff0, want: gpu.Absent(gpu.ReasonLost)},
		"a status without a sentinel":     {kind: gpu.FieldInt, status: stNoPermission, bits: 41, want: gpu.Absent(gpu.ReasonNotPermitted)},
		"a mere failure":                  {kind: gpu.FieldFloat, status: -8, bits: real(140737488355328.0), want: gpu.Absent(gpu.ReasonError)},
		"a failure with a telling value":  {kind: gpu.FieldFloat, status: -8, bits: real(140737488355330.0), want: gpu.Absent(gpu.ReasonNotSupported)},
		"a status that says more":         {kind: gpu.FieldInt, status: stTimeout, bits: 0x7ffffffffffffff2, want: gpu.Absent(gpu.ReasonTimeout)},
		"a blob with a status":            {kind: gpu.FieldBinary, status: stNoData, want: gpu.Absent(gpu.ReasonBlank)},
		"profiling that is not supported": {kind: gpu.FieldFloat, status: stProfilingNotSupported, want: gpu.Absent(gpu.ReasonNotSupported)},
	} {
		if got := decode(c.kind, c.status, c.bits, c.text); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestAValueIsThereOnlyWithAGoodStatusAndNoSentinel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := gpu.FieldType(rapid.IntRange(0, 6).Draw(t, "kind"))
		status := rapid.OneOf(rapid.Just(int32(0)), rapid.Int32Range(-70, 5), rapid.Int32()).Draw(t, "status")
		bits := rapid.OneOf(
			rapid.Uint64(),
			rapid.Uint64Range(0x7fffffffffffffe0, 0x8000000000000010),
			rapid.Map(rapid.Float64(), math.Float64bits),
			rapid.Map(rapid.Float64Range(1<<47-4, 1<<47+8), math.Float64bits),
		).Draw(t, "bits")
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`<<<?[A-Z_]*>>?>`)).Draw(t, "text")
		checkDecoded(t, kind, status, bits, text)
	})
}

func FuzzDecodingNeverInventsAValue(f *testing.F) {
	f.Add(uint8(1), int32(0), uint64(0x7ffffffffffffff2), "")
	f.Add(uint8(2), int32(-14), uint64(0x42e0000000000000), "")
	f.Add(uint8(3), int32(0), uint64(0), "<<<NOT_PERM>>>")
	f.Fuzz(func(t *testing.T, kind uint8, status int32, bits uint64, text string) {
		checkDecoded(t, gpu.FieldType(kind), status, bits, text)
	})
}

// failer is what tests of both kinds can be told.
type failer interface {
	Fatalf(format string, args ...any)
}

func checkDecoded(t failer, kind gpu.FieldType, status int32, bits uint64, text string) {
	v := decode(kind, status, bits, text)
	if v.Present() == (v.Reason() != gpu.ReasonNone) {
		t.Fatalf("%+v is there with a reason, or absent without one", v)
	}
	if !v.Present() {
		return
	}
	if status != 0 {
		t.Fatalf("%+v is there with status %d", v, status)
	}
	ok := false
	switch kind {
	case gpu.FieldInt:
		var n int64
		n, ok = v.AsInt()
		ok = ok && uint64(n) == bits && n < math.MaxInt64-15
	case gpu.FieldFloat:
		var n float64
		n, ok = v.AsFloat()
		ok = ok && math.Float64bits(n) == bits && n < 140737488355328
	case gpu.FieldText:
		var s string
		s, ok = v.AsText()
		ok = ok && s == text && !(strings.HasPrefix(s, "<<<") && strings.Contains(s, ">>>"))
	}
	if !ok {
		t.Fatalf("kind %d, bits %#x and text %q are read as %+v", kind, bits, text, v)
	}
}

func TestAVersionIsFoundInWhatDCGMSaysOfItsBuild(t *testing.T) {
	for text, want := range map[string]string{
		"version:4.6.0": "4.6.0",
		"arch:x86_64;buildid:7;version:4.6.0;x:y:z": "4.6.0",
		" version : 4.6.0 ;":                        "4.6.0",
		"":                                          "",
		"version":                                   "",
		"version:;commit:a":                         "",
		"driverversion:1;versions:4":                "",
	} {
		got, err := versionIn(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q has version %q and error %v, want %q", text, got, err, want)
		}
	}
	for version, want := range map[string]bool{"3.3.9": true, "2": true, "4.0.0": false, "4.6.0": false, "10.1": false, "": false, "main": false} {
		if tooOld(version) != want {
			t.Errorf("%q is too old: %t, want %t", version, !want, want)
		}
	}
}

func FuzzFindingAVersion(f *testing.F) {
	f.Add("arch:x86_64;version:4.6.0")
	f.Fuzz(func(t *testing.T, text string) {
		version, err := versionIn(text)
		if (version == "") != (err != nil) || !strings.Contains(text, version) {
			t.Errorf("%q has version %q and error %v", text, version, err)
		}
	})
}

func TestALinksNumberSaysWhoseItIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := link{
			parent: entity{rapid.SampledFrom([]entityGroup{groupGPU, groupSwitch}).Draw(t, "group"), rapid.Uint32Range(0, 255).Draw(t, "id")},
			port:   rapid.IntRange(0, 65535).Draw(t, "port"),
		}
		if got := linkOf(l.entity().id); got != l || l.entity().group != groupLink {
			t.Fatalf("%+v is %+v after its number %s", l, got, l.entity())
		}
	})
	if id := (link{parent: entity{groupSwitch, 2}, port: 17}).entity().id; id != 0x02001103 {
		t.Errorf("port 17 of switch 2 is %#08x, want 0x02001103", id)
	}
}
