// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestGoldenPages(t *testing.T) {
	e := exporterOf(t, mixedNode(), rowsOf(t, mixedCounters), mixedConfig())
	for name, format := range map[string]Format{
		"mixed.prom": FormatText, "mixed.openmetrics": FormatOpenMetrics, "mixed.pb": FormatProtobuf,
	} {
		golden(t, name, []byte(writtenPage(t, e, format)))
	}
}

func TestGoldenPageWithCopies(t *testing.T) {
	cfg := mixedConfig()
	cfg.VirtualGPUs, cfg.PodUID, cfg.OldNamespace, cfg.ReplaceBlanksInModelName = true, true, true, true
	cfg.HostnameLabel = "Hostname"
	golden(t, "mixed_virtual-gpus.prom", []byte(pageOf(t, mixedNode(), rowsOf(t, mixedCounters), cfg)))
}

func TestGoldenPageOfAllThatIsComputed(t *testing.T) {
	rows := rowsOf(t, computedCounters+"DCGM_FI_DEV_XID_ERRORS, gauge, Last XID.\nDCGM_FI_DRIVER_VERSION, label, Driver version\n")
	e := exporterOf(t, eventfulNode(), rows, eventfulConfig(t))
	golden(t, "computed.prom", []byte(writtenPage(t, e, FormatText)))
	if err := checkOpenMetrics([]byte(writtenPage(t, e, FormatOpenMetrics))); err != nil {
		t.Error(err)
	}
}

func TestGoldenPageBeforeFirstTick(t *testing.T) {
	e, err := New(latest{}, rowsOf(t, mixedCounters), mixedConfig())
	if err != nil {
		t.Fatal(err)
	}
	e.Reload(rowsOf(t, mixedCounters), nil, noon)
	golden(t, "empty.prom", []byte(writtenPage(t, e, FormatText)))
}

// parsedText is a page as Prometheus' own text parser reads it.
func parsedText(page string) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(strings.NewReader(page))
}

// parsedProtobuf is a page as the protobuf library reads it.
func parsedProtobuf(page string) (map[string]*dto.MetricFamily, error) {
	families := make(map[string]*dto.MetricFamily)
	r := bufio.NewReader(strings.NewReader(page))
	for {
		f := &dto.MetricFamily{}
		switch err := protodelim.UnmarshalFrom(r, f); {
		case errors.Is(err, io.EOF):
			return families, nil
		case err != nil:
			return nil, err
		case families[f.GetName()] != nil:
			return nil, errors.New("family twice: " + f.GetName())
		}
		families[f.GetName()] = f
	}
}

func TestProtobufSaysWhatTextSays(t *testing.T) {
	e := exporterOf(t, mixedNode(), rowsOf(t, mixedCounters), mixedConfig())
	text, err := parsedText(writtenPage(t, e, FormatText))
	if err != nil {
		t.Fatal(err)
	}
	protobuf, err := parsedProtobuf(writtenPage(t, e, FormatProtobuf))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text, protobuf, protocmp.Transform()); diff != "" {
		t.Errorf("text and protobuf differ (-text +protobuf):\n%s", diff)
	}
	if len(text) < 25 {
		t.Errorf("%d families: the comparison saw too little", len(text))
	}
}

// ownPart is what a page says in gpumeter's name.
func ownPart(page string) string {
	var own strings.Builder
	for line := range strings.Lines(page) {
		name := line
		for _, comment := range []string{"# HELP ", "# TYPE "} {
			name = strings.TrimPrefix(name, comment)
		}
		if strings.HasPrefix(name, ownPrefix) {
			own.WriteString(line)
		}
	}
	return own.String()
}

func TestOwnFamiliesPassPrometheusLint(t *testing.T) {
	s := eventfulNode()
	judged := judgedNode()
	s.Health, s.HealthStore = judged.Health, judged.HealthStore
	metered := meteredNode()
	s.Ledger, s.XIDs = metered.Ledger, metered.XIDs
	page := ownPart(pageOf(t, s, rowsOf(t, mixedCounters+computedCounters), eventfulConfig(t)))
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if n := strings.Count(page, "# HELP "); n < 25 || n != strings.Count(page, "# TYPE ") {
		t.Errorf("lint saw %d families with help and %d with a type", n, strings.Count(page, "# TYPE "))
	}
}

func TestOpenMetricsKeepsNames(t *testing.T) {
	energy := Counter{Name: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Field: gpu.Field{ID: fieldEnergy, Scope: gpu.ScopeGPU}, Type: TypeCounter, Help: "energy"}
	gauge, counter := energy, energy
	gauge.Name, gauge.Type, counter.Name = "x", TypeGauge, "x_total"
	rows := &Counters{rows: []Counter{energy, gauge, counter}}
	page := writtenPage(t, exporterOf(t, mixedNode(), rows, Config{}), FormatOpenMetrics)
	for _, want := range []string{
		"# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{",
		"# TYPE gpumeter_ticks counter\ngpumeter_ticks_total 7\n",
		// Its name without _total is another family's.
		"# TYPE x_total unknown\nx_total{",
		"# TYPE x gauge\n",
		"# TYPE gpumeter_unattributed counter\ngpumeter_unattributed_total{",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("page lacks %q", want)
		}
	}
	if err := checkOpenMetrics([]byte(page)); err != nil {
		t.Error(err)
	}
	if !bytes.HasSuffix([]byte(page), []byte("\n# EOF\n")) {
		t.Error("page does not end with # EOF")
	}
}
