// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Under NVIDIA's GPU operator the exporter has its node's name, no service account's token, and dcgm-exporter's paths.
func TestTheGPUOperatorsExporterWorks(t *testing.T) {
	text, err := os.ReadFile("../../../tests/testdata/operator.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var operator struct {
		Versions []struct {
			Version  string
			Exporter map[string]string
		}
	}
	if err := yaml.Unmarshal(text, &operator); err != nil || len(operator.Versions) == 0 {
		t.Fatalf("%v, %d versions", err, len(operator.Versions))
	}
	for _, version := range operator.Versions {
		t.Run(version.Version, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
			t.Setenv("KUBERNETES_SERVICE_PORT", "443")
			cfg, err := parse(t, version.Exporter)
			if err != nil {
				t.Fatal(err)
			}
			if cfg.Address != ":9400" || !cfg.Kubernetes || cfg.NodeName != "n1" || filepath.Dir(cfg.Collectors) != "/etc/dcgm-exporter" || len(cfg.NotYet) > 0 {
				t.Errorf("%+v", cfg)
			}
			pretend := simulated()
			cfg.Source, cfg.Speed, cfg.Interval, cfg.Address = pretend.Source, pretend.Speed, pretend.Interval, pretend.Address
			cfg.Collectors = filepath.Join("../../../etc", filepath.Base(cfg.Collectors))
			r := start(t, cfg)
			page := eventually(t, r.url+"/metrics", "gpumeter_allocation_share{")
			for _, want := range []string{`hostname="n1"`, "DCGM_FI_DEV_GPU_TEMP{", "DCGM_FI_PROF_GR_ENGINE_ACTIVE{"} {
				if !strings.Contains(page, want) {
					t.Errorf("the page lacks %s", want)
				}
			}
			if code, _ := get(t, http.DefaultClient, r.url+"/health"); code != http.StatusOK {
				t.Errorf("the operator's probes get %d", code)
			}
		})
	}
}
