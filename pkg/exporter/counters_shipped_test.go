// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/etc"
)

// shippedRows are the active rows of dcgm-exporter's files; the types of rates are
// the ones of its release 4.8.3, or what that release would have given them.
var shippedRows = map[string]string{
	"default-counters.csv": `DCGM_FI_DEV_SM_CLOCK g, DCGM_FI_DEV_MEM_CLOCK g, DCGM_FI_DEV_MEMORY_TEMP g, DCGM_FI_DEV_GPU_TEMP g,
		DCGM_FI_DEV_POWER_USAGE g, DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION c, DCGM_FI_DEV_PCIE_REPLAY_COUNTER c, DCGM_FI_DEV_GPU_UTIL g,
		DCGM_FI_DEV_MEM_COPY_UTIL g, DCGM_FI_DEV_ENC_UTIL g, DCGM_FI_DEV_DEC_UTIL g, DCGM_FI_DEV_XID_ERRORS g, DCGM_FI_DEV_FB_FREE g,
		DCGM_FI_DEV_FB_USED g, DCGM_FI_DEV_FB_RESERVED g, DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL g, DCGM_FI_DEV_VGPU_LICENSE_STATUS g,
		DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS c, DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS c, DCGM_FI_DEV_ROW_REMAP_FAILURE g,
		DCGM_FI_DRIVER_VERSION l, DCGM_FI_PROF_GR_ENGINE_ACTIVE g, DCGM_FI_PROF_PIPE_TENSOR_ACTIVE g, DCGM_FI_PROF_DRAM_ACTIVE g,
		DCGM_FI_PROF_PCIE_TX_BYTES g, DCGM_FI_PROF_PCIE_RX_BYTES g`,
	"1.x-compatibility-metrics.csv": `dcgm_sm_clock g, dcgm_memory_clock g, dcgm_memory_temp g, dcgm_gpu_temp g, dcgm_power_usage g,
		dcgm_total_energy_consumption c, dcgm_fi_prof_pcie_tx_bytes g, dcgm_fi_prof_pcie_rx_bytes g, dcgm_pcie_replay_counter c,
		dcgm_gpu_utilization g, dcgm_mem_copy_utilization g, dcgm_enc_utilization g, dcgm_dec_utilization g, dcgm_xid_errors g, dcgm_fb_free g,
		dcgm_fb_used g, dcgm_nvlink_bandwidth_total g, dcgm_fi_prof_gr_engine_active g, dcgm_fi_prof_pipe_tensor_active g, dcgm_fi_prof_dram_active g`,
}

func TestShippedFilesHaveTheRowsOfDCGMExporter(t *testing.T) {
	shippedAs := map[string]string{"dcp-metrics-included.csv": "default-counters.csv"}
	for _, name := range etc.Names() {
		t.Run(name, func(t *testing.T) {
			data, err := etc.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			c, problems := ParseCounters(name, data)
			for _, p := range problems {
				t.Error(p)
			}
			want, ok := shippedRows[name]
			if !ok {
				want = shippedRows[shippedAs[name]]
			}
			var rows []string
			for _, row := range c.Rows() {
				if row.Help == "" {
					t.Errorf("%s has no help", row.Name)
				}
				rows = append(rows, row.Name+" "+row.Type.String()[:1])
			}
			if diff := cmp.Diff(strings.Fields(strings.ReplaceAll(want, ",", "")), strings.Fields(strings.Join(rows, " "))); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff([]string{"1.x-compatibility-metrics.csv", "dcp-metrics-included.csv", "default-counters.csv"}, etc.Names()); diff != "" {
		t.Errorf("shipped files (-want +got):\n%s", diff)
	}
	if got, err := etc.ReadFile("default-counters.csv"); err != nil || string(got) != string(etc.DefaultCounters()) {
		t.Errorf("DefaultCounters is not default-counters.csv (%v)", err)
	}
}

func TestExamplesInShippedFilesCanBeSwitchedOn(t *testing.T) {
	for _, name := range etc.Names() {
		data, err := etc.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "\n# DCGM_FI_", "\nDCGM_FI_")
		text = strings.ReplaceAll(text, "\n# dcgm_", "\ndcgm_")
		text = strings.ReplaceAll(text, "\n# DCGM_EXP_", "\nDCGM_EXP_")
		before, _ := ParseCounters(name, data)
		after, problems := ParseCounters(name, []byte(text))
		for _, p := range problems {
			t.Error(p)
		}
		if examples := len(after.Rows()) - len(before.Rows()); examples < 15 {
			t.Errorf("%s has %d examples", name, examples)
		}
	}
}
