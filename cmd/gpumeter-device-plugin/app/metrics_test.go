// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/gpumeter/gpumeter/pkg/cdi"
	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/health"
)

// busy is a plugin in the middle of things: shared GPUs of which one is broken, a resource that is
// gone, a kubelet that refused once.
func busy() observed {
	bounds := []time.Duration{time.Millisecond, time.Second}
	stats := deviceplugin.Stats{
		Revision: "0123456789ab label", Prepares: 3, PrepareFailures: 1,
		Resources: []deviceplugin.ResourceStats{
			{
				Name: "nvidia.com/gpu", Registrations: 1,
				Allocations: deviceplugin.Histogram{Bounds: bounds, Counts: make([]uint64, 3)},
			},
			{
				Name: "nvidia.com/gpu.shared", Served: true, Registered: true, Healthy: 28, Unhealthy: 4, Streams: 1, Lists: 5,
				Registrations: 2, RegistrationFailures: 1, Preferences: 6,
				Allocations:    deviceplugin.Histogram{Bounds: bounds, Counts: []uint64{5, 2, 1}, Sum: 2500 * time.Millisecond},
				AllocateErrors: map[string]uint64{deviceplugin.ReasonTooManyReplicas: 2},
			},
		},
	}
	s := &status{
		config:   configStatus{from: fromLabel, name: "/config/h100", good: false, goodAt: noon},
		verdicts: verdictHeld, unjudged: 1, version: 7, stockFrom: sourceNVML,
		stock:    stockOfList(listOf(healthy, healthy, unhealthy)),
		problems: map[deviceplugin.ProblemKind]int{deviceplugin.ProblemMIG: 2, deviceplugin.ProblemSelection: 1},
		set:      true, wanted: []string{"nvidia.com/gpu.shared"},
		repartition: health.Repartition{State: health.MIGPending, Since: noon, Paused: true},
	}
	labels := labelState{wanted: true, written: true, labels: 23, at: noon}
	return observed{
		status: func() *status { return s }, manager: func() deviceplugin.Stats { return stats }, reconnects: func() uint64 { return 2 }, registers: true,
		specs: func() *deviceplugin.Problem { return bareSpecs(cdi.Config{}) }, labels: func() labelState { return labels },
	}
}

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	r := httptest.NewRecorder()
	h.ServeHTTP(r, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.Code, string(body)
}

func TestTheMetricsPageIsWhatDashboardsKnowGolden(t *testing.T) {
	h := handler(busy(), slog.New(slog.DiscardHandler))
	code, page := get(t, h, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d: %s", code, page)
	}
	var kept strings.Builder
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "gpumeter_device_plugin_build_info{") {
			kept.WriteString(line)
		}
	}
	golden(t, "metrics.prom", kept.String())
	problems, err := promlint.New(bytes.NewBufferString(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestAPageBeforeAnythingIsKnownClaimsNothing(t *testing.T) {
	d := newDirector(defaults(), slog.New(slog.DiscardHandler), &handedOver{}, noon)
	o := observed{status: d.status.Load, manager: func() deviceplugin.Stats { return deviceplugin.Stats{} }, reconnects: func() uint64 { return 0 }, specs: func() *deviceplugin.Problem { return nil }, labels: (*labelWriter)(nil).stats}
	_, page := get(t, handler(o, slog.New(slog.DiscardHandler)), "/metrics")
	for _, absent := range []string{"judging_paused ", "feature_labels", "config_info{", "success_timestamp_seconds ", "problems{", "devices{health"} {
		if strings.Contains(page, absent) {
			t.Errorf("%s is there", absent)
		}
	}
	for _, there := range []string{`verdict_source{source="none"} 1`, "monitor_up 0", "ready 0", "config_last_reload_successful 0"} {
		if !strings.Contains(page, there) {
			t.Errorf("%s is not there", there)
		}
	}
}

func TestReadyIsWhenTheKubeletHasAllThatThereIs(t *testing.T) {
	served := func(name string, registered bool) deviceplugin.ResourceStats {
		return deviceplugin.ResourceStats{Name: name, Served: true, Registered: registered, LastError: "refused"}
	}
	for _, c := range []struct {
		name      string
		status    status
		resources []deviceplugin.ResourceStats
		registers bool
		why       string
		// trouble is what keeps devices from being prepared.
		trouble string
	}{
		{"nothing known", status{}, nil, true, "not known yet", ""},
		{"nothing known and nobody to register with", status{}, nil, false, "not known yet", ""},
		{"nothing to register", status{set: true}, nil, true, "", ""},
		{"not served yet", status{set: true, wanted: []string{"a"}}, nil, true, "a is not served yet", ""},
		{"not prepared", status{set: true, wanted: []string{"a"}}, nil, true, "a is not served yet: no space", "no space"},
		{"one is not registered", status{set: true, wanted: []string{"a", "b"}}, []deviceplugin.ResourceStats{served("a", true), served("b", false)}, true, "b is not registered with the kubelet: refused", ""},
		{"one waits", status{set: true, wanted: []string{"a"}}, []deviceplugin.ResourceStats{{Name: "a", Served: true}}, true, "a is not registered with the kubelet yet\n", ""},
		{"all are", status{set: true, wanted: []string{"a", "b"}}, []deviceplugin.ResourceStats{served("a", true), served("b", true)}, true, "", ""},
		{"no kubelet to register with", status{set: true, wanted: []string{"a"}}, []deviceplugin.ResourceStats{served("a", false)}, false, "", ""},
		{"one that is gone does not count", status{set: true, wanted: []string{"a"}}, []deviceplugin.ResourceStats{served("a", true), {Name: "old"}}, true, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := observed{
				status: func() *status { return &c.status }, manager: func() deviceplugin.Stats { return deviceplugin.Stats{Resources: c.resources, PrepareError: c.trouble} },
				reconnects: func() uint64 { return 0 }, registers: c.registers,
			}
			code, text := get(t, handler(o, slog.New(slog.DiscardHandler)), "/readyz")
			if (code == http.StatusOK) != (c.why == "") || !strings.Contains(text, c.why) {
				t.Errorf("%d: %s", code, text)
			}
			if code, _ := get(t, handler(o, slog.New(slog.DiscardHandler)), "/healthz"); code != http.StatusOK {
				t.Errorf("/healthz is %d", code)
			}
		})
	}
}
