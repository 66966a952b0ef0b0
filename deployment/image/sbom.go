// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// module is our own, as the programs have it in them.
const module = "github.com/gpumeter/gpumeter"

// sbom makes a scanner's SPDX of an archive one that is the same each time it is made: the scanner puts the hour and
// a random number into it, and does not know our version. It is an error when the scanner missed something.
func sbom(o options, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("sbom: want the scanner's file and the archive, got %q", args)
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read the scanner's file: %w", err)
	}
	a, err := openArchive(args[1])
	if err != nil {
		return err
	}
	defer func() { _ = a.close() }()
	if len(a.images) != 1 {
		return fmt.Errorf("sbom: %s has %d images, want one", args[1], len(a.images))
	}
	digest, err := a.images[0].Digest()
	if err != nil {
		return fmt.Errorf("digest of the image: %w", err)
	}
	name := strings.TrimSuffix(filepath.Base(args[1]), ".tar")
	settled, err := settle(text, name, source+"/spdx/"+name+"-"+digest.Hex, o)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if err := os.WriteFile(o.out, settled, 0o644); err != nil {
		return fmt.Errorf("write the SBOM: %w", err)
	}
	return nil
}

// settle gives an SPDX document its name, its namespace and the time of the commit, and our module its version.
func settle(text []byte, name, namespace string, o options) ([]byte, error) {
	var document map[string]any
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("read SPDX: %w", err)
	}
	creation, ok := document["creationInfo"].(map[string]any)
	packages, listed := document["packages"].([]any)
	if !ok || !listed || document["spdxVersion"] != "SPDX-2.3" {
		return nil, errors.New("this is no SPDX 2.3 document with packages")
	}
	document["name"], document["documentNamespace"] = name, namespace
	creation["created"] = o.time().Format(time.RFC3339)
	found := map[string]bool{}
	for _, p := range packages {
		p, ok := p.(map[string]any)
		if !ok {
			return nil, errors.New("a package is no object")
		}
		named, _ := p["name"].(string)
		found[named] = true
		if named == module {
			p["versionInfo"] = o.version
		}
	}
	for _, name := range slices.Concat(basePackages(), []string{module, "stdlib", "go.etcd.io/bbolt"}) {
		if !found[name] {
			return nil, fmt.Errorf("%s is not in it", name)
		}
	}
	return json.MarshalIndent(document, "", " ")
}
