// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const realUUID = "6d1c0b52-7f0e-4a3b-9c1e-2b7a55aa0001"

func TestParseIDReadsEveryForm(t *testing.T) {
	tests := []struct {
		text, canonical string
		replica         int
	}{
		{"GPU-" + realUUID, "GPU-" + realUUID, NoReplica},
		{"GPU-" + strings.ToUpper(realUUID), "GPU-" + realUUID, NoReplica},
		{"GPU-a", "GPU-a", NoReplica},
		{"GPU-A", "GPU-A", NoReplica},
		{"GPU-a::0", "GPU-a::0", 0},
		{"GPU-a::49", "GPU-a::49", 49},
		{"GPU-a::2147483646", "GPU-a::2147483646", 2147483646},
		{"MIG-" + realUUID + "::1", "MIG-" + realUUID + "::1", 1},
		{"MIG-" + strings.ToUpper(realUUID), "MIG-" + realUUID, NoReplica},
		{"MIG-GPU-" + realUUID + "/1/0", "MIG-GPU-" + realUUID + "/1/0", NoReplica},
		{"MIG-GPU-" + strings.ToUpper(realUUID) + "/13/0::3", "MIG-GPU-" + realUUID + "/13/0::3", 3},
		{"nvidia0", "nvidia0", NoReplica},
		{"nvidia15", "nvidia15", NoReplica},
		{"nvidia0/gi2", "nvidia0/gi2", NoReplica},
		{"nvidia0/vgpu1", "nvidia0/vgpu1", 1},
		{"nvidia0/gi0/vgpu0", "nvidia0/gi0/vgpu0", 0},
		{"index3", "index3", NoReplica},
		{"index3/gi7/vgpu1", "index3/gi7/vgpu1", 1},
		{"18:00.0", "00000000:18:00.0", NoReplica},
		{"0000:18:00.0", "00000000:18:00.0", NoReplica},
		{"0000:AF:1f.7", "00000000:af:1f.7", NoReplica},
		{"0001BEEF:18:00.0", "0001beef:18:00.0", NoReplica},
	}
	for _, tt := range tests {
		id, err := ParseID(tt.text)
		if err != nil {
			t.Errorf("ParseID(%q): %v", tt.text, err)
			continue
		}
		if id.String() != tt.canonical || id.Replica() != tt.replica || id.IsReplica() != (tt.replica != NoReplica) {
			t.Errorf("ParseID(%q) is %s, replica %d; want %s, %d", tt.text, id, id.Replica(), tt.canonical, tt.replica)
		}
		if whole := id.Device(); whole.IsReplica() || !strings.HasPrefix(id.String(), whole.String()) {
			t.Errorf("device of %s is %s", id, whole)
		}
	}
}

func TestParseIDIsStrict(t *testing.T) {
	for text, reason := range map[string]string{
		"":                                ReasonMalformedID,
		"GPU-":                            ReasonMalformedID,
		"GPU-a b":                         ReasonMalformedID,
		"GPU-ä":                           ReasonMalformedID,
		"gpu-a":                           ReasonMalformedID,
		" GPU-a":                          ReasonMalformedID,
		"GPU-a\n":                         ReasonMalformedID,
		"GPU-a/0":                         ReasonMalformedID,
		"GPU-a:0":                         ReasonMalformedID,
		"MIG-GPU-a":                       ReasonMalformedID,
		"MIG-GPU-a/1":                     ReasonMalformedID,
		"MIG-GPU-a/1/":                    ReasonMalformedID,
		"MIG-GPU-a/1/0/0":                 ReasonMalformedID,
		"MIG-GPU-a/-1/0":                  ReasonMalformedID,
		"MIG-GPU-/1/0":                    ReasonMalformedID,
		"MIG-GPU-a/01/0":                  ReasonMalformedID,
		"MIG-GPU-a/1/9999999999":          ReasonNumberTooLarge,
		"GPU-a::":                         ReasonMalformedReplica,
		"GPU-a::x":                        ReasonMalformedReplica,
		"GPU-a::-1":                       ReasonMalformedReplica,
		"GPU-a::+1":                       ReasonMalformedReplica,
		"GPU-a::01":                       ReasonMalformedReplica,
		"GPU-a::0::1":                     ReasonMalformedReplica,
		"GPU-a:::1":                       ReasonMalformedReplica,
		"GPU-a::2147483647":               ReasonNumberTooLarge,
		"GPU-a::99999999999999999999999":  ReasonNumberTooLarge,
		"nvidia":                          ReasonMalformedID,
		"nvidiactl":                       ReasonMalformedID,
		"nvidia00":                        ReasonMalformedID,
		"index":                           ReasonMalformedID,
		"index01":                         ReasonMalformedID,
		"nvidia0/":                        ReasonMalformedID,
		"nvidia0/gi":                      ReasonMalformedID,
		"nvidia0/gi1/ci0":                 ReasonMalformedID,
		"nvidia0/vgpu0/gi1":               ReasonMalformedID,
		"nvidia0/vgpu":                    ReasonMalformedReplica,
		"nvidia0/vgpu01":                  ReasonMalformedReplica,
		"nvidia0::1":                      ReasonMalformedID,
		"18:00.0::1":                      ReasonMalformedID,
		"18:00.8":                         ReasonMalformedID,
		"18:20.0":                         ReasonMalformedID,
		"00:18:00.0":                      ReasonMalformedID,
		"g000:18:00.0":                    ReasonMalformedID,
		"0000:18:00":                      ReasonMalformedID,
		"+018:18:00.0":                    ReasonMalformedID,
		"tegra":                           ReasonMalformedID,
		"all":                             ReasonMalformedID,
		"GPU-" + strings.Repeat("a", 200): ReasonMalformedID,
	} {
		id, err := ParseID(text)
		var failure *IDError
		if !errors.As(err, &failure) || failure.Reason != reason || failure.Text != text || id != (ID{}) {
			t.Errorf("ParseID(%q) = %v, %v; want reason %s", text, id, err, reason)
		}
	}
}

func TestParseIDErrorNamesTheText(t *testing.T) {
	_, err := ParseID("GPU-a::x")
	if want := `parse device id "GPU-a::x": malformed replica`; err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func TestOneDeviceHasOneID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := idText(rapid.SampledFrom([]string{"a", "b", realUUID})).Draw(t, "id")
		id, err := ParseID(text)
		if err != nil {
			t.Fatalf("ParseID(%q): %v", text, err)
		}
		again, err := ParseID(id.String())
		if err != nil || again != id {
			t.Fatalf("%q is %s, which reads back as %s, %v", text, id, again, err)
		}
	})
}

// idText draws ids of every form.
func idText(uuids *rapid.Generator[string]) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		small := func(label string) int { return rapid.IntRange(0, 5).Draw(t, label) }
		suffix := rapid.SampledFrom([]string{"", fmt.Sprintf("::%d", small("replica"))}).Draw(t, "suffix")
		uuid := uuids.Draw(t, "uuid")
		return rapid.SampledFrom([]string{
			"GPU-" + uuid + suffix,
			"MIG-" + uuid + suffix,
			fmt.Sprintf("MIG-GPU-%s/%d/%d%s", uuid, small("gi"), small("ci"), suffix),
			fmt.Sprintf("nvidia%d", small("minor")),
			fmt.Sprintf("nvidia%d/gi%d", small("minor"), small("gi")),
			fmt.Sprintf("nvidia%d/vgpu%d", small("minor"), small("vgpu")),
			fmt.Sprintf("index%d", small("index")),
			fmt.Sprintf("index%d/gi%d/vgpu%d", small("index"), small("gi"), small("vgpu")),
			fmt.Sprintf("nvidia%d/gi%d/vgpu%d", small("minor"), small("gi"), small("vgpu")),
			fmt.Sprintf("0000:%02X:00.0", 0x18+small("bus")),
			fmt.Sprintf("%02x:00.0", 0x18+small("bus")),
		}).Draw(t, "form")
	})
}

func FuzzParseID(f *testing.F) {
	for _, text := range []string{
		"GPU-" + realUUID, "GPU-" + strings.ToUpper(realUUID) + "::3", "MIG-" + realUUID + "::0", "MIG-GPU-" + realUUID + "/1/0",
		"nvidia0", "nvidia0/gi2", "nvidia0/vgpu1", "nvidia0/gi2/vgpu0", "0000:18:00.0", "00000000:AF:1F.7", "18:00.0",
		"GPU-a::2147483647", "GPU-a::x", "index7/gi1", "GPU-::", "::", "nvidia/", "MIG-GPU-//",
	} {
		f.Add(text)
	}
	ix := NewIndex(cut(a100x80("GPU-a", 0), place{profile: "1g.10gb"}))
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseID(text)
		if err != nil {
			var failure *IDError
			if !errors.As(err, &failure) || failure.Reason == "" || id != (ID{}) {
				t.Fatalf("ParseID(%q) = %v, %v", text, id, err)
			}
			return
		}
		again, err := ParseID(id.String())
		if err != nil || again != id || again.String() != id.String() {
			t.Fatalf("%q is %s, which reads back as %s, %v", text, id, again, err)
		}
		if d, reason := ix.Resolve(id); (d.UUID == "") == (reason == "") {
			t.Fatalf("%q resolves to %q and %q", text, d.UUID, reason)
		}
	})
}
