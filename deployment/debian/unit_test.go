// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const unitFile = repository + "/deployment/systemd/gpumeter-exporter.service"

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// settings are a unit's by name, without comments.
func settings(t *testing.T, name string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for line := range strings.Lines(read(t, name)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			out[key] = append(out[key], value)
		}
	}
	return out
}

func TestTheUnitStartsTheExporterAgainHoweverOftenItFails(t *testing.T) {
	unit := settings(t, unitFile)
	for key, want := range map[string]string{"Restart": "always", "StartLimitIntervalSec": "0", "User": "gpumeter", "StateDirectory": "gpumeter", "RuntimeDirectory": "gpumeter", "EnvironmentFile": "-/etc/default/gpumeter-exporter"} {
		if !slices.Equal(unit[key], []string{want}) {
			t.Errorf("%s is %v, want %s", key, unit[key], want)
		}
	}
	if slices.Contains(unit["PrivateDevices"], "yes") {
		t.Error("without devices there are no GPUs")
	}
}

// TestWhatTheUnitNamesIsThere holds every variable and path against the reference of the flags and the package.
func TestWhatTheUnitNamesIsThere(t *testing.T) {
	reference := read(t, repository+"/docs/configuration.md")
	exporter, _, _ := strings.Cut(reference, "\n## gpumeter-device-plugin\n")
	text := read(t, unitFile) + read(t, repository+"/deployment/systemd/gpumeter-exporter.default")
	variables := regexp.MustCompile(`(?m)^(?:Environment=|#)([A-Z][A-Z_]+)="?([^"\n]*)`).FindAllStringSubmatch(text, -1)
	if len(variables) < 8 {
		t.Errorf("only %d variables are found", len(variables))
	}
	for _, v := range variables {
		if !strings.Contains(exporter, "`"+v[1]+"`") {
			t.Errorf("the exporter knows no variable %s", v[1])
		}
	}
	for _, name := range regexp.MustCompile(`/(?:usr/bin|etc/gpumeter|etc/default|usr/share/doc)/[a-z0-9./-]+[a-z0-9]`).FindAllString(text, -1) {
		known := slices.ContainsFunc(packaged(), func(file string) bool { return file == name || strings.HasPrefix(file, name+"/") })
		if !known && name != "/etc/gpumeter/web.yml" {
			t.Errorf("%s is in no package", name)
		}
	}
	if tmpfiles := read(t, repository+"/deployment/systemd/gpumeter.tmpfiles"); !strings.Contains(text, `DCGM_HPC_JOB_MAPPING_DIR="/run/gpumeter-jobs"`) || !strings.Contains(tmpfiles, "d /run/gpumeter-jobs ") {
		t.Error("the folder of jobs that the settings name is not the one that is made")
	}
}

func TestTheDropInForProfilingGivesOneCapability(t *testing.T) {
	dropIn := settings(t, repository+"/deployment/systemd/profiling.conf")
	if !slices.Equal(dropIn["CapabilityBoundingSet"], dropIn["AmbientCapabilities"]) || !slices.Equal(dropIn["AmbientCapabilities"], []string{"CAP_SYS_ADMIN"}) {
		t.Errorf("it gives %v of %v", dropIn["AmbientCapabilities"], dropIn["CapabilityBoundingSet"])
	}
}

func TestSystemdFindsTheUnitRightAndWellConfined(t *testing.T) {
	needs(t, "systemd-analyze")
	// systemd looks for the programs that a unit runs.
	unit := strings.ReplaceAll(read(t, unitFile), "/usr/bin/gpumeter-exporter", filepath.Join(programsDir(t), "gpumeter-exporter"))
	file := filepath.Join(t.TempDir(), "gpumeter-exporter.service")
	if err := os.WriteFile(file, []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	if said := say(t, "systemd-analyze", "verify", "--man=no", file); strings.Contains(said, "gpumeter") {
		t.Errorf("systemd finds fault with it: %s", said)
	}
	// In tenths: 2.0 of 10, where 10 is a service without any confinement.
	say(t, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", file)
}
