// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpumeter/gpumeter/dashboards/catalogue"
)

// TestTheJSONIsWhatGoMakes holds the files here and in the chart to what `go run .` would write.
func TestTheJSONIsWhatGoMakes(t *testing.T) {
	made := t.TempDir()
	if err := write([]string{made}); err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders() {
		found, err := filepath.Glob(filepath.Join(folder, "*.json"))
		if err != nil || len(found) != len(catalogue.All()) {
			t.Errorf("%s has %d dashboards, want %d (%v): run `go -C dashboards run .`", folder, len(found), len(catalogue.All()), err)
		}
		for _, d := range catalogue.All() {
			want, err := os.ReadFile(filepath.Join(made, d.Name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(folder, d.Name+".json"))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s/%s.json is not what Go makes (%v): run `go -C dashboards run .`", folder, d.Name, err)
			}
		}
	}
}
