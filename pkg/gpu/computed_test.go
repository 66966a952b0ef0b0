// SPDX-License-Identifier: Apache-2.0

package gpu

import "testing"

func TestComputedMetricsHaveTheNumbersOfDCGMExporter(t *testing.T) {
	for name, id := range map[string]FieldID{
		"DCGM_EXP_XID_ERRORS_COUNT": 9001, "DCGM_EXP_CLOCK_EVENTS_COUNT": 9002,
		"DCGM_EXP_GPU_HEALTH_STATUS": 9003, "DCGM_EXP_P2P_STATUS": 9004,
	} {
		byName, ok := FieldByName(name)
		byID, same := FieldByID(id)
		if !ok || !same || byName.ID != id || byID.Name != name || !id.Computed() {
			t.Errorf("%s is %d by name and %q by number, want %d", name, byName.ID, byID.Name, id)
		}
	}
	for _, id := range []FieldID{0, 230, 9000, 9007} {
		if id.Computed() {
			t.Errorf("field %d is computed", id)
		}
	}
	for _, f := range Fields() {
		if f.ID.Computed() {
			t.Errorf("%s is among DCGM's own fields", f.Name)
		}
	}
}
