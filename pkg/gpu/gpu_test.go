// SPDX-License-Identifier: Apache-2.0

package gpu

import "testing"

func TestAMIGDeviceBelongsToItsCard(t *testing.T) {
	card := Device{UUID: "GPU-5c1f0a2e-0000-4000-8000-000000000001", GPUInstance: NoInstance, ComputeInstance: NoInstance}
	slice := Device{UUID: "MIG-9d6b2f10-0000-5000-8000-000000000002", Parent: card.UUID, GPUInstance: 1, ComputeInstance: 0}

	if card.IsMIG() || card.Card() != card.UUID {
		t.Errorf("a physical GPU: MIG %v, card %q", card.IsMIG(), card.Card())
	}
	if !slice.IsMIG() || slice.Card() != card.UUID {
		t.Errorf("a MIG device: MIG %v, card %q", slice.IsMIG(), slice.Card())
	}
}

func TestUUIDsOfMIGDevicesAreKnownByTheirPrefix(t *testing.T) {
	for _, tc := range []struct {
		uuid UUID
		mig  bool
	}{
		{"GPU-5c1f0a2e-0000-4000-8000-000000000001", false},
		{"MIG-9d6b2f10-0000-5000-8000-000000000002", true},
		{"MIG-GPU-5c1f0a2e-0000-4000-8000-000000000001/1/0", true},
		{"GPU-MIG-", false},
		{"mig-9d6b2f10", false},
		{"MIG", false},
		{"", false},
	} {
		if got := tc.uuid.IsMIG(); got != tc.mig {
			t.Errorf("UUID(%q).IsMIG() = %v, want %v", tc.uuid, got, tc.mig)
		}
	}
}

func TestAComputeInstanceSpansItsGPUInstanceOrIsOneOfSeveral(t *testing.T) {
	for _, tc := range []struct {
		name    string
		profile Profile
		spans   bool
	}{
		{"whole 3g", Profile{Name: "3g.40gb", Slices: Slices{Compute: 3, Memory: 4}, ComputeInstanceSlices: 3}, true},
		{"1c of a 3g", Profile{Name: "1c.3g.40gb", Slices: Slices{Compute: 3, Memory: 4}, ComputeInstanceSlices: 1}, false},
		{"2c of a 3g", Profile{Name: "2c.3g.40gb", Slices: Slices{Compute: 3, Memory: 4}, ComputeInstanceSlices: 2}, false},
		{"1g", Profile{Name: "1g.10gb", Slices: Slices{Compute: 1, Memory: 1}, ComputeInstanceSlices: 1}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.profile.SpansInstance(); got != tc.spans {
				t.Errorf("SpansInstance() = %v, want %v", got, tc.spans)
			}
		})
	}
}
