// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// told are the rows in short, "name=id type 'help'", and the problems as lines.
func told(c *Counters, problems []Problem) (rows, lines []string) {
	for _, row := range c.Rows() {
		rows = append(rows, fmt.Sprintf("%s=%d %s '%s'", row.Name, row.Field.ID, row.Type, row.Help))
	}
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("%s %s", p.Severity, p))
	}
	return rows, lines
}

const noRow = "error f:1:1: file has no usable row (a row is: field, type, help, such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature)"

func TestCounterRows(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		rows       []string
		problems   []string
	}{
		{
			"as dcgm-exporter writes it",
			"# Temperature\nDCGM_FI_DEV_GPU_TEMP,    gauge, GPU temperature (in C).\n\nDCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder\n",
			[]string{"DCGM_FI_DEV_GPU_TEMP=150 gauge 'GPU temperature (in C).'", "DCGM_FI_DEV_DEC_UTIL=207 gauge 'Decoder'"}, nil,
		},
		{
			"the present name, an old one and a number", "DCGM_FI_DEV_BOARD_POWER_WATTS,gauge,a\ndcgm_gpu_temp,gauge,b\n251,gauge,c\n203,gauge,d\n",
			[]string{"DCGM_FI_DEV_BOARD_POWER_WATTS=155 gauge 'a'", "dcgm_gpu_temp=150 gauge 'b'", "DCGM_FI_DEV_FB_FREE=251 gauge 'c'", "DCGM_FI_DEV_GPU_UTIL=203 gauge 'd'"}, nil,
		},
		{
			"a field whose alias only marks a section", "1300,gauge,\n520,label,\n",
			[]string{"DCGM_FI_DEV_CONNECTX_HEALTH=1300 gauge ''", "DCGM_FI_DEV_VGPU_VM_ID=520 label ''"}, nil,
		},
		{
			"every type", "100,gauge,\n202,COUNTER,\n101,untyped,\n1,label,\n",
			[]string{"DCGM_FI_DEV_SM_CLOCK=100 gauge ''", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER=202 counter ''", "DCGM_FI_DEV_MEM_CLOCK=101 untyped ''", "DCGM_FI_DRIVER_VERSION=1 label ''"}, nil,
		},
		{
			"byte order mark, CRLF and no end of line", "\ufeff# x\r\nDCGM_FI_DEV_GPU_TEMP,gauge,x\r\n\r\nDCGM_FI_DEV_SM_CLOCK,gauge,y",
			[]string{"DCGM_FI_DEV_GPU_TEMP=150 gauge 'x'", "DCGM_FI_DEV_SM_CLOCK=100 gauge 'y'"}, nil,
		},
		{
			"indented comments and rows, tabs", "   # x\n\t#y,z\n \tDCGM_FI_DEV_GPU_TEMP\t,\tgauge\t,\tx\t\n   \n\t\n",
			[]string{"DCGM_FI_DEV_GPU_TEMP=150 gauge 'x'"}, nil,
		},
		{
			"quotes", "DCGM_FI_DEV_GPU_TEMP, gauge, \"a, b\"  \n\"DCGM_FI_DEV_SM_CLOCK\",\" gauge \",\"say \"\"MHz\"\"\"\nDCGM_FI_DEV_MEM_CLOCK,gauge,5\" disk\n",
			[]string{"DCGM_FI_DEV_GPU_TEMP=150 gauge 'a, b'", "DCGM_FI_DEV_SM_CLOCK=100 gauge 'say \"MHz\"'", "DCGM_FI_DEV_MEM_CLOCK=101 gauge '5\" disk'"}, nil,
		},
		{
			"missing help and trailing commas", "DCGM_FI_DEV_GPU_TEMP,gauge\nDCGM_FI_DEV_SM_CLOCK,gauge,\nDCGM_FI_DEV_MEM_CLOCK,gauge,x,\nDCGM_FI_DEV_FB_USED,gauge,y, , \n",
			[]string{"DCGM_FI_DEV_GPU_TEMP=150 gauge ''", "DCGM_FI_DEV_SM_CLOCK=100 gauge ''", "DCGM_FI_DEV_MEM_CLOCK=101 gauge 'x'", "DCGM_FI_DEV_FB_USED=252 gauge 'y'"}, nil,
		},
		{
			"a metric and a label of one field", "DCGM_FI_DEV_ECC_CURRENT,gauge,x\nDCGM_FI_DEV_ECC_CURRENT,label,x\n",
			[]string{"DCGM_FI_DEV_ECC_CURRENT=300 gauge 'x'", "DCGM_FI_DEV_ECC_CURRENT=300 label 'x'"}, nil,
		},
		{
			"help beyond ASCII", "DCGM_FI_DEV_GPU_TEMP,gauge,Température (°C) \ufffd\n",
			[]string{"DCGM_FI_DEV_GPU_TEMP=150 gauge 'Température (°C) \ufffd'"}, nil,
		},

		{
			"unknown names", "DCGM_FI_DEV_GPU_TEMPS,gauge,x\n  dcgm_gpu_tmp,gauge,x\n151x,gauge,x\ndcgm_fi_dev_gpu_temp_celsius_,gauge,x\n100,gauge,\n",
			[]string{"DCGM_FI_DEV_SM_CLOCK=100 gauge ''"},
			[]string{
				`error f:1:1: unknown field "DCGM_FI_DEV_GPU_TEMPS" (did you mean DCGM_FI_DEV_GPU_TEMP?)`,
				`error f:2:3: unknown field "dcgm_gpu_tmp" (did you mean dcgm_gpu_temp, dcgm_cpu_temp?)`,
				`error f:3:1: unknown field "151x" (names are DCGM's, such as DCGM_FI_DEV_GPU_TEMP, or a field's number)`,
				`error f:4:1: unknown field "dcgm_fi_dev_gpu_temp_celsius_" (did you mean DCGM_FI_DEV_GPU_TEMP_CELSIUS, DCGM_FI_DEV_CPU_TEMP_CELSIUS?)`,
			},
		},
		{
			"a comma in the help, and the rest of the file", "DCGM_FI_DEV_GPU_TEMP,gauge,a, b\nDCGM_FI_DEV_SM_CLOCK,gauge,x\n",
			[]string{"DCGM_FI_DEV_SM_CLOCK=100 gauge 'x'"},
			[]string{"error f:1:31: row has 4 cells, more than field, type and help (put a help text with commas in double quotes)"},
		},
		{
			"a quote that is not closed costs its line", "DCGM_FI_DEV_GPU_TEMP, gauge, \"a\nDCGM_FI_DEV_SM_CLOCK,gauge,x\nDCGM_FI_DEV_MEM_CLOCK,gauge,\"a\" b\n",
			[]string{"DCGM_FI_DEV_SM_CLOCK=100 gauge 'x'"},
			[]string{
				"error f:1:30: quote is not closed on this line (close it; a cell cannot go on to the next line)",
				"error f:3:33: text after a closing quote (write a quote inside a quoted cell twice)",
			},
		},
		{
			"too few cells", "DCGM_FI_DEV_GPU_TEMP\n,gauge,x\n , ,\nDCGM_FI_DEV_SM_CLOCK,,x\n", nil,
			[]string{
				"error f:1:1: row has no type (a row is: field, type, help, such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature)",
				"error f:2:1: row has no field (a row is: field, type, help, such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature)",
				"error f:3:2: row has no field (a row is: field, type, help, such as: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature)",
				"error f:4:22: row has no type (use gauge, counter, untyped or label)",
				noRow,
			},
		},
		{
			"types", "DCGM_FI_DEV_GPU_TEMP,  guage,x\nDCGM_FI_DEV_SM_CLOCK,histogram,x\nDCGM_FI_DEV_MEM_CLOCK,summary,x\nDCGM_FI_DEV_BRAND,gauge,x\nDCGM_FI_DEV_SERIAL,histogram,x\nDCGM_FI_DEV_SUPPORTED_CLOCKS,label,x\n",
			[]string{"DCGM_FI_DEV_SM_CLOCK=100 untyped 'x'", "DCGM_FI_DEV_MEM_CLOCK=101 untyped 'x'"},
			[]string{
				`error f:1:24: unknown type "guage" (use gauge, counter, untyped or label)`,
				"warning f:2:22: DCGM_FI_DEV_SM_CLOCK is one value and no histogram, and is exported as untyped (use gauge, counter, untyped or label)",
				"warning f:3:23: DCGM_FI_DEV_MEM_CLOCK is one value and no summary, and is exported as untyped (use gauge, counter, untyped or label)",
				"error f:4:19: DCGM_FI_DEV_BRAND is text and cannot be a gauge (use label)",
				"error f:5:20: DCGM_FI_DEV_SERIAL is text and cannot be a histogram (use label)",
				"error f:6:1: DCGM_FI_DEV_SUPPORTED_CLOCKS is a binary structure, which has no place in a metric (remove the row)",
			},
		},
		{
			"duplicates", "DCGM_FI_DEV_XID_ERRORS,gauge,a\ndcgm_xid_errors,gauge,b\n DCGM_FI_DEV_XID_ERRORS,counter,c\n230,gauge,d\n",
			[]string{"DCGM_FI_DEV_XID_ERRORS=230 gauge 'a'", "dcgm_xid_errors=230 gauge 'b'"},
			[]string{
				"warning f:2:1: dcgm_xid_errors is the same field as DCGM_FI_DEV_XID_ERRORS on line 1, and is exported under both names (remove one of the rows unless both names are in use)",
				"error f:3:2: DCGM_FI_DEV_XID_ERRORS is already exported (remove this row, or the one on line 1)",
				"error f:4:1: DCGM_FI_DEV_XID_ERRORS is already exported (remove this row, or the one on line 1)",
			},
		},
		{
			"what goes up and down", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL,counter,x\nDCGM_FI_PROF_PCIE_TX_BYTES, counter,x\nDCGM_FI_PROF_PCIE_TX_BYTES_TOTAL,counter,x\nDCGM_FI_DEV_POWER_USAGE,label,x\n",
			[]string{
				"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL=449 counter 'x'", "DCGM_FI_PROF_PCIE_TX_BYTES=1009 counter 'x'",
				"DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL=1091 counter 'x'", "DCGM_FI_DEV_POWER_USAGE=155 label 'x'",
			},
			[]string{
				"warning f:1:36: DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL goes up and down, and is exported as a counter as written (use gauge: rate() and increase() take each fall for a restart)",
				"warning f:2:29: DCGM_FI_PROF_PCIE_TX_BYTES goes up and down, and is exported as a counter as written (use gauge: rate() and increase() take each fall for a restart)",
				"warning f:4:25: DCGM_FI_DEV_POWER_USAGE changes all the time, and each change begins new series of all that it labels (use gauge)",
			},
		},
		{
			"what the exporter computes",
			"DCGM_EXP_XID_ERRORS_COUNT,gauge,x\n DCGM_EXP_XID_ERRORS_TOTAL , counter,\"a, b\"\n9002,untyped,\nDCGM_EXP_CLOCK_EVENTS_TOTAL,gauge\n" +
				"\"DCGM_EXP_GPU_HEALTH_STATUS\",gauge,x\nDCGM_EXP_P2P_STATUS,Gauge,x\n",
			[]string{
				"DCGM_EXP_XID_ERRORS_COUNT=9001 gauge 'x'", "DCGM_EXP_XID_ERRORS_TOTAL=9005 counter 'a, b'", "DCGM_EXP_CLOCK_EVENTS_COUNT=9002 untyped ''",
				"DCGM_EXP_CLOCK_EVENTS_TOTAL=9006 gauge ''", "DCGM_EXP_GPU_HEALTH_STATUS=9003 gauge 'x'", "DCGM_EXP_P2P_STATUS=9004 gauge 'x'",
			}, nil,
		},
		{
			"what the exporter computes, with a type that does not fit",
			"DCGM_EXP_XID_ERRORS_COUNT,foo,x\nDCGM_EXP_CLOCK_EVENTS_COUNT,counter,x\nDCGM_EXP_GPU_HEALTH_STATUS,counter,x\nDCGM_EXP_P2P_STATUS,label,x\n" +
				"DCGM_EXP_XID_ERRORS_TOTAL,histogram,x\nDCGM_EXP_XID_ERROR_COUNT,gauge,x\n",
			[]string{
				"DCGM_EXP_CLOCK_EVENTS_COUNT=9002 counter 'x'", "DCGM_EXP_GPU_HEALTH_STATUS=9003 counter 'x'", "DCGM_EXP_XID_ERRORS_TOTAL=9005 untyped 'x'",
			},
			[]string{
				`error f:1:27: unknown type "foo" (use gauge, counter, untyped or label)`,
				"warning f:2:29: DCGM_EXP_CLOCK_EVENTS_COUNT goes up and down, and is exported as a counter as written (use gauge: rate() and increase() take each fall for a restart)",
				"warning f:3:28: DCGM_EXP_GPU_HEALTH_STATUS goes up and down, and is exported as a counter as written (use gauge: rate() and increase() take each fall for a restart)",
				"error f:4:21: DCGM_EXP_P2P_STATUS is several series of each GPU and cannot be a label (use gauge, or counter for a total)",
				"warning f:5:27: DCGM_EXP_XID_ERRORS_TOTAL is one value and no histogram, and is exported as untyped (use gauge, counter, untyped or label)",
				`error f:6:1: unknown field "DCGM_EXP_XID_ERROR_COUNT" (did you mean DCGM_EXP_XID_ERRORS_COUNT?)`,
			},
		},
		{
			"a field that DCGM does not describe", "DCGM_FI_PROF_NVDEC0_ACTIVE,gauge,x\nDCGM_FI_PROF_NVDEC1_ACTIVE,foo,x\n",
			[]string{"DCGM_FI_PROF_NVDEC0_ACTIVE=1017 gauge 'x'"},
			[]string{
				"warning f:1:1: DCGM's catalogue does not describe DCGM_FI_PROF_NVDEC0_ACTIVE (it has samples only where the host's DCGM has the field)",
				`error f:2:28: unknown type "foo" (use gauge, counter, untyped or label)`,
			},
		},
		{
			"bytes that are no text", "# \xff\x00\nDCGM_FI_DEV_GPU_TEMP,gauge,a\xffb\nDCGM_FI_DEV_SM\x00_CLOCK,gauge,x\nDCGM_FI_DEV_SM_CLOCK,gauge,a\rb\ndcgm_\u017fm_clock,gauge,x\n100,gauge,\u0085\n100,gauge,\n",
			[]string{"DCGM_FI_DEV_SM_CLOCK=100 gauge ''"},
			[]string{
				"error f:2:29: byte 0xff is not UTF-8 (save the file as UTF-8)",
				"error f:3:15: control character U+0000 (remove it)",
				"error f:4:29: control character U+000D (remove it)",
				`error f:5:1: unknown field "dcgm_ſm_clock" (did you mean dcgm_sm_clock?)`,
				"error f:6:11: control character U+0085 (remove it)",
			},
		},
		{"UTF-16", "\xff\xfeD\x00C\x00", nil, []string{"error f:1:1: file is UTF-16 (save it as UTF-8)"}},
		{"nothing at all", "", nil, []string{noRow}},
		{"comments only", "# a\n\n  # b\n", nil, []string{noRow}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rows, problems := told(ParseCounters("f", []byte(tc.text)))
			if diff := cmp.Diff(tc.rows, rows); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.problems, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRowsAndProblemsAreCountedOnTheLinesOfTheFile(t *testing.T) {
	c, problems := ParseCounters("f", []byte("\ufeff\r\n# comment\r\n\r\nDCGM_FI_DEV_GPU_TEMP,gauge,\r\n\r\nnonsense,gauge,\r\n"))
	if rows := c.Rows(); len(rows) != 1 || rows[0].Line != 4 {
		t.Errorf("rows are %+v, want one on line 4", rows)
	}
	if len(problems) != 1 || problems[0].Line != 6 || problems[0].Column != 1 {
		t.Errorf("problems are %v, want one at 6:1", problems)
	}
}

func TestAFileThatIsNoCounterFileIsAnsweredInBounds(t *testing.T) {
	c, problems := ParseCounters("f", make([]byte, MaxCounterFile+1))
	if len(c.Rows()) != 0 || len(problems) != 1 || problems[0].Severity != SeverityError {
		t.Errorf("a file over the limit gives %d rows and %v", len(c.Rows()), problems)
	}

	c, problems = ParseCounters("f", []byte(strings.Repeat("DCGM_FI_DEV_GPU_TEMPS\n", MaxCounterFile/22-1)+"100,gauge,x\n"))
	if len(c.Rows()) != 1 {
		t.Errorf("the good row at the end is lost: %v", c.Rows())
	}
	if first, later := problems[0].Hint, problems[maxGuesses].Hint; strings.Contains(later, "did you mean") || first == "" {
		t.Errorf("the nearest name is looked for in vain again and again: %q, %q", first, later)
	}
	if len(problems) != maxProblems+1 || !strings.HasSuffix(problems[maxProblems].String(), "more problems are not listed") {
		t.Errorf("%d problems are listed, the last %q", len(problems), problems[len(problems)-1])
	}
}

func TestCountersCannotBeChangedThroughWhatTheyReturn(t *testing.T) {
	c, _ := ParseCounters("f", []byte("150,gauge,\n100,gauge,\n"))
	c.Rows()[0].Name, c.Fields()[0] = "changed", 0
	if got := c.Rows()[0].Name; got != "DCGM_FI_DEV_GPU_TEMP" {
		t.Errorf("the first row is now %s", got)
	}
	if diff := cmp.Diff([]gpu.FieldID{100, 150}, c.Fields()); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

// A source sees what is computed as a wish, and counting clock events takes the reasons
// in every sample.
func TestComputedRowsAreAmongTheFieldsToAskFor(t *testing.T) {
	for text, want := range map[string][]gpu.FieldID{
		"DCGM_EXP_XID_ERRORS_COUNT,gauge\nDCGM_EXP_GPU_HEALTH_STATUS,gauge\n150,gauge\n": {150, 9001, 9003},
		"DCGM_EXP_CLOCK_EVENTS_COUNT,gauge\n150,gauge\n":                                 {112, 150, 9002},
		"DCGM_EXP_CLOCK_EVENTS_TOTAL,counter\n112,gauge\n":                               {112, 9006},
		"DCGM_EXP_CLOCK_EVENTS_TOTAL,label\n150,gauge\n":                                 {150},
	} {
		c, _ := ParseCounters("f", []byte(text))
		if diff := cmp.Diff(want, c.Fields()); diff != "" {
			t.Errorf("fields of %q (-want +got):\n%s", text, diff)
		}
	}
}

// A label row is named after a field, so it can be neither an invalid label name
// nor one that the exporter uses itself. Were a field ever named so, the row
// would have to be refused.
func TestNoFieldIsNamedLikeALabelOfTheExporter(t *testing.T) {
	taken := []string{
		"gpu", "UUID", "uuid", "gpu_uuid", "pci_bus_id", "device", "modelName", "model_name", "GPU_I_PROFILE", "GPU_I_ID", "hostname", "Hostname",
		"namespace", "pod", "container", "pod_namespace", "pod_name", "container_name", "pod_uid", "vgpu", "err_code", "err_msg",
		"nvlink", "nvswitch", "cpu", "cpucore", "hpc_job", "window_size_in_ms", "xid", "clock_event", "health_watch", "health_error_code",
		"peer_gpu", "link_status", model.MetricNameLabel,
	}
	for _, f := range gpu.Fields() {
		for _, name := range append([]string{f.Name}, f.Aliases...) {
			if !model.LegacyValidation.IsValidLabelName(name) || !model.LegacyValidation.IsValidMetricName(name) || strings.HasPrefix(name, "__") {
				t.Errorf("field %d: %q is no name for the exposition", f.ID, name)
			}
			if slices.Contains(taken, name) || strings.HasPrefix(name, "dra_") {
				t.Errorf("field %d is named like the exporter's label %q", f.ID, name)
			}
		}
	}
	for _, name := range taken {
		if f, ok := gpu.FieldByName(name); ok {
			t.Errorf("%q is a name of field %d", name, f.ID)
		}
	}
}

func TestWhatIsACountIsNotTakenForALevel(t *testing.T) {
	for name, want := range map[string]bool{
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": false, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": false, "DCGM_FI_DEV_POWER_VIOLATION": false,
		"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": false, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": false, "DCGM_FI_DEV_RETIRED_SBE": false,
		"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": false, "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES": false, "DCGM_FI_PROF_SM_CYCLES_ACTIVE_TOTAL": false,
		"DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL": false, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": false,

		"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": true, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": true, "DCGM_FI_PROF_NVLINK_TX_BYTES": true,
		"DCGM_FI_PROF_NVLINK_TX_BYTES_PER_LINK": true, "DCGM_FI_DEV_GPU_TEMP": true, "DCGM_FI_DEV_MEMORY_TEMP": true, "DCGM_FI_DEV_POWER_USAGE": true,
		"DCGM_FI_DEV_SM_CLOCK": true, "DCGM_FI_DEV_GPU_UTIL": true, "DCGM_FI_DEV_ENC_UTIL": true, "DCGM_FI_DEV_FB_USED": true,
		"DCGM_FI_DEV_XID_ERRORS": true, "DCGM_FI_PROF_DRAM_ACTIVE": true, "DCGM_FI_DEV_BAR1_FREE": true,
	} {
		f, ok := gpu.FieldByName(name)
		if !ok {
			t.Errorf("%s is no field", name)
		}
		if got := falls(f); got != want {
			t.Errorf("falls(%s) = %v, want %v", name, got, want)
		}
	}
}

// checkCounters holds for every text whatsoever.
func checkCounters(t interface{ Errorf(string, ...any) }, data []byte) {
	c, problems := ParseCounters("f", data)
	lines := strings.Split(strings.TrimPrefix(string(data), "\ufeff"), "\n")
	lost, warned := make(map[int]bool), make(map[int]bool)
	for _, p := range problems {
		if p.Line < 1 || p.Line > len(lines) || p.Column < 1 || p.Column > len(lines[p.Line-1])+1 || p.Text == "" || p.File != "f" {
			t.Errorf("no such place: %s", p)
			return
		}
		if p.Severity == SeverityError {
			lost[p.Line] = true
		} else {
			warned[p.Line] = true
		}
	}
	names, kept := make(map[counterName]bool), make(map[int]bool)
	for _, row := range c.Rows() {
		if !model.LegacyValidation.IsValidMetricName(row.Name) || !model.LegacyValidation.IsValidLabelName(row.Name) {
			t.Errorf("row %+v has no valid name", row)
		}
		if f, ok := gpu.FieldByName(row.Name); !ok || f.ID != row.Field.ID {
			t.Errorf("row %+v is named after another field", row)
		}
		key := counterName{row.Type == TypeLabel, row.Name}
		if names[key] || kept[row.Line] {
			t.Errorf("row %+v is there twice", row)
		}
		names[key], kept[row.Line] = true, true
		if row.Type != TypeLabel && (row.Field.Type == gpu.FieldText || row.Field.Type == gpu.FieldBinary) {
			t.Errorf("row %+v makes a number of what is none", row)
		}
		// Line 1 also has what concerns the whole file.
		if lost[row.Line] && row.Line > 1 {
			t.Errorf("line %d is both kept and lost", row.Line)
		}
	}
	for line := range warned {
		if !kept[line] {
			t.Errorf("line %d has a warning but no row", line)
		}
	}
	if len(problems) == 0 && len(kept) == 0 {
		t.Errorf("no rows, and no word about it")
	}
	fields := c.Fields()
	if !slices.IsSorted(fields) || len(slices.Compact(fields)) != len(c.Fields()) {
		t.Errorf("fields are not ascending: %v", fields)
	}
}

func TestEveryLineIsARowOrAProblem(t *testing.T) {
	fields := gpu.Fields()
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.Custom(func(t *rapid.T) string {
			name := rapid.OneOf(
				rapid.Custom(func(t *rapid.T) string { return rapid.SampledFrom(fields).Draw(t, "field").Name }),
				rapid.Custom(func(t *rapid.T) string {
					return fmt.Sprint(rapid.SampledFrom(fields).Draw(t, "number").ID)
				}),
				rapid.SampledFrom([]string{"dcgm_gpu_temp", "DCGM_EXP_P2P_STATUS", "#", "", "\"150\"", "\"150"}), rapid.StringN(0, 10, -1),
			).Draw(t, "name")
			kind := rapid.SampledFrom([]string{"gauge", "counter", "label", "untyped", "summary", "", "Gauge", "\"gauge\"", "x"}).Draw(t, "type")
			help := rapid.OneOf(rapid.SampledFrom([]string{"", "a, b", "\"a, b\"", "\"a"}), rapid.StringN(0, 10, -1)).Draw(t, "help")
			space := rapid.SampledFrom([]string{"", " ", "\t", "  "}).Draw(t, "space")
			return space + name + space + "," + space + kind + space + "," + space + help
		})
		text := strings.Join(rapid.SliceOfN(line, 0, 12).Draw(t, "lines"), rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "end"))
		checkCounters(t, []byte(text))
	})
}

func FuzzParseCounters(f *testing.F) {
	for _, text := range []string{
		"", "\ufeff", "\xff\xfe", ",", ",,,,", "\"", "\"\"", "\"\",\"\"", "150,gauge", "150,gauge,\"a\"\"b\" , ", "1,label,\r", "\x00", "  #\n\t", "99999,gauge,x",
		"DCGM_FI_DEV_GPU_TEMP, gauge, \"a, b\"\nDCGM_FI_DEV_GPU_TEMP,gauge,a, b\ndcgm_gpu_temp,histogram,x\nDCGM_EXP_XID_ERRORS_COUNT,foo,x\nDCGM_FI_DEV_BRAND,gauge,x",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkCounters(t, data) })
}

func BenchmarkParseCounters(b *testing.B) {
	data := etc.DefaultCounters()
	for b.Loop() {
		ParseCounters("default-counters.csv", data)
	}
}
