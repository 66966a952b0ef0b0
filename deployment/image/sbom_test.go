// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// scanned is what a scanner says, with packages of these names.
func scanned(hour, number string, names ...string) []byte {
	var packages []string
	for _, name := range names {
		packages = append(packages, fmt.Sprintf(`{"name": %q, "versionInfo": "UNKNOWN"}`, name))
	}
	return fmt.Appendf(nil, `{"spdxVersion": "SPDX-2.3", "name": "x", "documentNamespace": "https://example.com/%s", "creationInfo": {"created": %q, "creators": ["Tool: it"]}, "packages": [%s]}`,
		number, hour, strings.Join(packages, ", "))
}

func TestAnSBOMIsTheSameEachTimeItIsMade(t *testing.T) {
	names := slices.Concat(basePackages(), []string{module, "stdlib", "go.etcd.io/bbolt"})
	o := options{version: "v0.9.0", created: 1796000000}
	one, err := settle(scanned("2026-01-01T00:00:00Z", "1", names...), "image", "https://example.com/image", o)
	if err != nil {
		t.Fatal(err)
	}
	other, err := settle(scanned("2027-01-01T00:00:00Z", "2", names...), "image", "https://example.com/image", o)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, other) {
		t.Errorf("%s\nand\n%s", one, other)
	}
	var document struct {
		Namespace string `json:"documentNamespace"`
		Creation  struct {
			Created  string
			Creators []string
		} `json:"creationInfo"`
		Packages []struct{ Name, VersionInfo string }
	}
	if err := json.Unmarshal(one, &document); err != nil {
		t.Fatal(err)
	}
	if document.Namespace != "https://example.com/image" || document.Creation.Created != "2026-11-30T00:53:20Z" || len(document.Creation.Creators) != 1 {
		t.Errorf("%+v", document)
	}
	for _, p := range document.Packages {
		if want := map[bool]string{true: "v0.9.0", false: "UNKNOWN"}[p.Name == module]; p.VersionInfo != want {
			t.Errorf("%s has version %s, want %s", p.Name, p.VersionInfo, want)
		}
	}
}

func TestAnSBOMThatMissedSomethingIsRefused(t *testing.T) {
	names := slices.Concat(basePackages(), []string{module, "stdlib", "go.etcd.io/bbolt"})
	for i, name := range names {
		if _, err := settle(scanned("", "", slices.Concat(names[:i], names[i+1:])...), "", "", options{}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	for _, text := range []string{"", "[]", "{}", `{"spdxVersion": "SPDX-2.3", "creationInfo": {}, "packages": [1]}`} {
		if _, err := settle([]byte(text), "", "", options{}); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
