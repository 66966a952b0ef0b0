// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"encoding/csv"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// catalogueRows are the records of the catalogue's source, by column name.
func catalogueRows(t testing.TB) []map[string]string {
	t.Helper()
	file, err := os.Open("dcgm_fields.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	records, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]string
	for _, rec := range records[1:] {
		row := make(map[string]string)
		for i, column := range records[0] {
			row[column] = rec[i]
		}
		rows = append(rows, row)
	}
	return rows
}

func TestEveryRowOfTheCatalogueIsFoundByEachOfItsNames(t *testing.T) {
	rows := catalogueRows(t)
	if len(rows) != 646 || len(Fields()) != len(rows) {
		t.Errorf("catalogue has %d fields for %d rows, want 646", len(Fields()), len(rows))
	}
	types := map[string]FieldType{"": FieldUnknown, "int64": FieldInt, "double": FieldFloat, "string": FieldText, "binary": FieldBinary}
	for _, row := range rows {
		n, err := strconv.Atoi(row["id"])
		if err != nil {
			t.Fatal(err)
		}
		field, ok := FieldByID(FieldID(n))
		if !ok {
			t.Errorf("field %d is not in the catalogue", n)
			continue
		}
		want := Field{
			ID: FieldID(n), Name: row["name"], Type: types[row["type"]],
			// Scopes have a test of their own.
			Scope: field.Scope, Unit: strings.TrimSpace(row["unit"]), Tag: row["tag"],
		}
		if row["aliases"] != "" {
			want.Aliases = []string{row["aliases"]}
		}
		if diff := cmp.Diff(want, field); diff != "" {
			t.Errorf("field %d (-want +got):\n%s", n, diff)
		}
		names := []string{row["id"], row["name"], row["aliases"]}
		if row["tag"] != "" && row["tag"] == strings.ToLower(row["tag"]) {
			names = append(names, "dcgm_"+row["tag"])
		}
		for _, name := range names {
			if got, ok := FieldByName(name); name != "" && (!ok || got.ID != field.ID) {
				t.Errorf("FieldByName(%q) = %d, %v; want %d", name, got.ID, ok, field.ID)
			}
		}
	}
}

func TestNoTwoFieldsClaimOneName(t *testing.T) {
	owner := make(map[string]FieldID)
	claim := func(name string, id FieldID) {
		if other, taken := owner[name]; taken {
			t.Errorf("fields %d and %d both claim %q", other, id, name)
		}
		owner[name] = id
	}
	for i, f := range fieldTable {
		claim(f.Name, f.ID)
		for _, alias := range f.Aliases {
			claim(alias, f.ID)
		}
		if f.Tag != "" {
			claim("tag "+f.Tag, f.ID)
		}
		if i > 0 && fieldTable[i-1].ID >= f.ID {
			t.Errorf("field %d stands after field %d", f.ID, fieldTable[i-1].ID)
		}
	}
}

func TestFieldNames(t *testing.T) {
	for _, tc := range []struct {
		name string
		want FieldID
	}{
		{"DCGM_FI_DEV_GPU_TEMP", 150},
		{"DCGM_FI_DEV_GPU_TEMP_CELSIUS", 150},
		{"DCGM_FI_DEV_POWER_USAGE", 155},
		{"DCGM_FI_DEV_BOARD_POWER_WATTS", 155},
		{"DCGM_FI_DEV_XID_ERRORS", 230},
		{"DCGM_FI_DEV_XID_ERROR", 230},
		{"DCGM_FI_DRIVER_VERSION", 1},
		{"DCGM_FI_SYSTEM_DRIVER_VERSION", 1},
		{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1001},
		{"DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1001},
		// Known by name only: the library it comes from does not describe it.
		{"DCGM_FI_PROF_NVDEC0_ACTIVE", 1017},
		{"150", 150},
		{"0", 0},

		// The 1.x file of dcgm-exporter, active rows and examples.
		{"dcgm_sm_clock", 100},
		{"dcgm_memory_clock", 101},
		{"dcgm_memory_temp", 140},
		{"dcgm_gpu_temp", 150},
		{"dcgm_power_usage", 155},
		{"dcgm_total_energy_consumption", 156},
		{"dcgm_pcie_tx_throughput", 200},
		{"dcgm_pcie_rx_throughput", 201},
		{"dcgm_pcie_replay_counter", 202},
		{"dcgm_gpu_utilization", 203},
		{"dcgm_mem_copy_utilization", 204},
		{"dcgm_enc_utilization", 206},
		{"dcgm_dec_utilization", 207},
		{"dcgm_xid_errors", 230},
		{"dcgm_power_violation", 240},
		{"dcgm_thermal_violation", 241},
		{"dcgm_sync_boost_violation", 242},
		{"dcgm_board_limit_violation", 243},
		{"dcgm_low_util_violation", 244},
		{"dcgm_reliability_violation", 245},
		{"dcgm_fb_free", 251},
		{"dcgm_fb_used", 252},
		{"dcgm_ecc_sbe_volatile_total", 310},
		{"dcgm_ecc_dbe_volatile_total", 311},
		{"dcgm_ecc_sbe_aggregate_total", 312},
		{"dcgm_ecc_dbe_aggregate_total", 313},
		{"dcgm_retired_pages_sbe", 390},
		{"dcgm_retired_pages_dbe", 391},
		{"dcgm_retired_pages_pending", 392},
		{"dcgm_nvlink_flit_crc_error_count_total", 409},
		{"dcgm_nvlink_data_crc_error_count_total", 419},
		{"dcgm_nvlink_replay_error_count_total", 429},
		{"dcgm_nvlink_recovery_error_count_total", 439},
		{"dcgm_nvlink_bandwidth_total", 449},
		{"dcgm_fi_prof_gr_engine_active", 1001},
		{"dcgm_fi_prof_sm_active", 1002},
		{"dcgm_fi_prof_sm_occupancy", 1003},
		{"dcgm_fi_prof_pipe_tensor_active", 1004},
		{"dcgm_fi_prof_dram_active", 1005},
		{"dcgm_fi_prof_pcie_tx_bytes", 1009},
		{"dcgm_fi_prof_pcie_rx_bytes", 1010},

		// A tag goes before a name: 532's earlier names would claim this one too.
		{"dcgm_vgpu_instance_license_status", 526},
	} {
		if got, ok := FieldByName(tc.name); !ok || got.ID != tc.want {
			t.Errorf("FieldByName(%q) = %d, %v; want %d", tc.name, got.ID, ok, tc.want)
		}
	}
}

func TestNamesThatAreNoField(t *testing.T) {
	for _, name := range []string{
		"", " ", "DCGM", "DCGM_FI_", "DCGM_FI_DEV_", "dcgm_", "dcgm_fi_", "dcgm_fi_dev_",
		"DCGM_FI_DEV_GPU_TEMP ", "DCGM_FI_DEV_gpu_temp", "Dcgm_gpu_temp", "dcgm_GPU_TEMP", "gpu_temp",
		"DCGM_EXP_XID_ERRORS", "0150", "+150", "-1", "150.0", "0x96", "99999", "65536", "78", "149",
	} {
		if got, ok := FieldByName(name); ok {
			t.Errorf("FieldByName(%q) = %d, want nothing", name, got.ID)
		}
	}
	for _, id := range []FieldID{78, 149, 1534, 65535} {
		if got, ok := FieldByID(id); ok {
			t.Errorf("FieldByID(%d) = %q, want nothing", id, got.Name)
		}
	}
}

func TestAPhysicalQuantityOfTheCardIsReadOncePerCard(t *testing.T) {
	for scope, names := range map[Scope][]string{
		ScopeNode: {
			"DCGM_FI_DRIVER_VERSION", "DCGM_FI_NVML_VERSION", "DCGM_FI_CUDA_DRIVER_VERSION", "DCGM_FI_DEV_COUNT",
			"DCGM_FI_GPU_TOPOLOGY_PCI", "DCGM_FI_GPU_TOPOLOGY_NVLINK", "DCGM_FI_GPU_TOPOLOGY_AFFINITY", "DCGM_FI_SYNC_BOOST",
			"DCGM_FI_DEV_DIAG_PCIE_RESULT", "DCGM_FI_IMEX_DOMAIN_STATUS",
		},
		ScopeGPU: {
			"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_USAGE_INSTANT", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
			"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK",
			"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
			"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "DCGM_FI_DEV_RETIRED_PENDING",
			"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_FAILURE",
			"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES",
			"DCGM_FI_DEV_NAME", "DCGM_FI_DEV_UUID", "DCGM_FI_DEV_CUDA_VISIBLE_DEVICES_STR", "DCGM_FI_DEV_SERIAL",
			"DCGM_FI_DEV_VGPU_LICENSE_STATUS", "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",
		},
		ScopeGPUInstance: {
			"DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_USED_PERCENT",
			"DCGM_FI_DEV_BAR1_TOTAL", "DCGM_FI_DEV_BAR1_USED", "DCGM_FI_DEV_BAR1_FREE",
			"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
			"DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_PIPE_FP32_ACTIVE", "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
			"DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", "DCGM_FI_PROF_PIPE_INT_ACTIVE",
		},
		ScopeLink:     {"DCGM_FI_DEV_NVLINK_GET_STATE", "DCGM_FI_DEV_NVSWITCH_LINK_STATUS"},
		ScopeSwitch:   {"DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT"},
		ScopeCPU:      {"DCGM_FI_DEV_CPU_TEMP_CURRENT"},
		ScopeCPUCore:  {"DCGM_FI_DEV_CPU_UTIL_TOTAL"},
		ScopeVGPU:     {"DCGM_FI_DEV_VGPU_UUID", "DCGM_FI_DEV_VGPU_INSTANCE_LICENSE_STATE"},
		ScopeConnectX: {"DCGM_FI_DEV_CONNECTX_HEALTH"},
		ScopeUnknown:  {"DCGM_FI_UNKNOWN", "DCGM_FI_PROF_NVDEC0_ACTIVE", "DCGM_FI_PROF_NVLINK_L0_TX_BYTES"},
	} {
		for _, name := range names {
			if f, ok := FieldByName(name); !ok || f.Scope != scope {
				t.Errorf("%s has scope %d, want %d", name, f.Scope, scope)
			}
		}
	}
}

// A new row of the source cannot take a scope other than DCGM's unless it is named here.
func TestScopesFollowTheCatalogueSaveForTheFieldsNamed(t *testing.T) {
	levels := map[string]Scope{
		"": ScopeUnknown, "gpu": ScopeGPU, "gpu_ci": ScopeGPUInstance, "gpu_i": ScopeGPUInstance, "link": ScopeLink, "switch": ScopeSwitch,
		"cpu": ScopeCPU, "cpu_core": ScopeCPUCore, "vgpu": ScopeVGPU, "connectx": ScopeConnectX, "none": ScopeNode,
	}
	var moved []string
	for _, row := range catalogueRows(t) {
		f, _ := FieldByName(row["id"])
		want, ok := levels[row["entity_level"]]
		if !ok {
			t.Errorf("field %s has the unknown level %q", row["id"], row["entity_level"])
		}
		if row["scope"] == "global" {
			want = ScopeNode
		}
		if f.Scope != want {
			moved = append(moved, row["id"])
		}
	}
	if diff := cmp.Diff([]string{"50", "54", "68", "230", "526"}, moved); diff != "" {
		t.Errorf("fields whose scope is not DCGM's (-want +got):\n%s", diff)
	}
}

func TestFieldsAreTheCallersOwn(t *testing.T) {
	fields := Fields()
	for i := range fields {
		fields[i].Name = "changed"
		for j := range fields[i].Aliases {
			fields[i].Aliases[j] = "changed"
		}
	}
	if f, ok := FieldByName("DCGM_FI_DEV_GPU_TEMP"); !ok || f.Name != "DCGM_FI_DEV_GPU_TEMP_CELSIUS" {
		t.Errorf("changing the copy changed the catalogue: %+v", f)
	}
	if !slices.IsSortedFunc(Fields(), func(a, b Field) int { return int(a.ID) - int(b.ID) }) {
		t.Error("Fields are not in the order of their ids")
	}
}

func TestAnyNumberIsAFieldExactlyIfTheCatalogueHasIt(t *testing.T) {
	known := make(map[FieldID]bool)
	for _, f := range Fields() {
		known[f.ID] = true
	}
	rapid.Check(t, func(t *rapid.T) {
		id := FieldID(rapid.OneOf(rapid.Uint16(), rapid.Uint16Range(0, 1600)).Draw(t, "id"))
		byID, ok := FieldByID(id)
		byName, okName := FieldByName(strconv.Itoa(int(id)))
		if ok != known[id] || okName != known[id] {
			t.Fatalf("field %d: by id %v, by name %v, in the catalogue %v", id, ok, okName, known[id])
		}
		if ok && byID.ID != id || byID.Name != byName.Name {
			t.Fatalf("field %d is found as %d and %q", id, byID.ID, byName.Name)
		}
	})
}

func TestGeneratedTableIsUpToDate(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command to run the generator with")
	}
	cmd := exec.Command(tool, "run", "fields_generate.go", "-stdout")
	cmd.Stderr = os.Stderr
	want, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("fields_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("fields_gen.go is out of date: run go generate ./pkg/gpu (-want +got):\n%s", diff)
	}
}

func BenchmarkFieldByName(b *testing.B) {
	for _, name := range []string{"DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_PROF_PCIE_RX_BYTES", "dcgm_nvlink_bandwidth_total", "1010"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				FieldByName(name)
			}
		})
	}
}

func BenchmarkFieldByID(b *testing.B) {
	for b.Loop() {
		FieldByID(1010)
	}
}

func FuzzFieldByName(f *testing.F) {
	for _, name := range []string{
		"", "150", "0150", "65536", "DCGM_FI_DEV_GPU_TEMP", "dcgm_gpu_temp", "dcgm_nvlink_bandwidth_total", "dcgm_fi_prof_dram_active", "dcgm_\xff",
		// The upper case of the long s is an S.
		"dcgm_\u017fm_clock",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		field, ok := FieldByName(name)
		if !ok {
			return
		}
		own := []string{strconv.Itoa(int(field.ID)), field.Name, "dcgm_" + field.Tag}
		for _, known := range append([]string{field.Name}, field.Aliases...) {
			own = append(own, known, strings.ToLower(known), "dcgm_"+strings.ToLower(strings.TrimPrefix(known, "DCGM_FI_DEV_")))
		}
		if !slices.Contains(own, name) {
			t.Errorf("FieldByName(%q) = %d (%s), whose name it is not", name, field.ID, field.Name)
		}
	})
}
