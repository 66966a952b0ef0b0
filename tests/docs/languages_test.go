// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// promql is what is wrong with a text as a query, or nil.
func promql(text string) error {
	if !bytes.ContainsAny([]byte(text), "({[") {
		return errors.New("no query")
	}
	_, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	return err
}

func TestYAMLJSONAndPromQLParse(t *testing.T) {
	count := map[string]int{}
	for _, p := range pages(t) {
		found, _ := p.blocks()
		for _, b := range found {
			var err error
			switch b.lang {
			case "yaml":
				err = everyDocument(b.text)
			case "json":
				var v any
				err = json.Unmarshal([]byte(b.text), &v)
			case "promql":
				err = promql(b.text)
			}
			if err != nil {
				t.Errorf("%s:%d: %v", p.name, b.line, err)
			}
			count[b.lang]++
		}
	}
	t.Log(count)
}

func everyDocument(text string) error {
	d := yaml.NewDecoder(bytes.NewBufferString(text))
	for {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// named is the comment by which a block says which file it is.
var named = regexp.MustCompile(`^# ([a-z-]+\.yaml)\s*$`)

// files are those that commands of the pages read, but for those of a page's own.
func (r *rig) files(t *testing.T) {
	t.Helper()
	shared := "version: v1\nsharing:\n  timeSlicing:\n    resources:\n      - {name: nvidia.com/gpu, replicas: 4}\n"
	for _, name := range []string{"config.yaml", "nvidia-config.yaml"} {
		must(t, os.WriteFile(filepath.Join(r.dir, name), []byte(shared), 0o600))
	}
	prices, err := os.ReadFile(filepath.Join(root, "etc", "prices.example.yaml"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(r.dir, "prices.yaml"), prices, 0o600))
}

// ownFiles writes the blocks of a page that say their name, for its own commands.
func (r *rig) ownFiles(t *testing.T, p *page) {
	t.Helper()
	found, _ := p.blocks()
	for _, b := range found {
		if m := named.FindStringSubmatch(b.firstLine()); m != nil && b.lang == "yaml" {
			must(t, os.WriteFile(filepath.Join(r.dir, m[1]), []byte(b.text), 0o600))
		}
	}
}
