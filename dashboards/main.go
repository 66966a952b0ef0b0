// SPDX-License-Identifier: Apache-2.0

// Command dashboards writes the JSON of the Grafana dashboards, here and in the Helm chart.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpumeter/gpumeter/dashboards/catalogue"
)

// folders are where the JSON goes, from this one: the chart needs copies, since Helm reads nothing outside of it.
func folders() []string { return []string{".", "../deployment/helm/gpumeter/files/dashboards"} }

func main() {
	if err := write(folders()); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err) //nolint:forbidigo // This is the command.
		os.Exit(1)
	}
}

func write(folders []string) error {
	for _, d := range catalogue.All() {
		raw, err := d.JSON()
		if err != nil {
			return err
		}
		for _, folder := range folders {
			if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // Sources are for everybody to read.
				return fmt.Errorf("make a folder for dashboard %s: %w", d.Name, err)
			}
			if err := os.WriteFile(filepath.Join(folder, d.Name+".json"), raw, 0o644); err != nil { //nolint:gosec // Likewise.
				return fmt.Errorf("write dashboard %s: %w", d.Name, err)
			}
		}
	}
	return nil
}
