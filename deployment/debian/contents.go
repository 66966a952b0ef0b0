// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2/files"
)

const (
	docs     = "/usr/share/doc/gpumeter"
	examples = docs + "/examples"
)

// layout collects the files of a package.
type layout struct {
	root, stage string
	files       files.Contents
}

// contents are the package's files; those that have to be made are written into stage.
func (o *options) contents(ctx context.Context, stage string) (files.Contents, error) {
	l := &layout{root: o.root, stage: stage}
	for _, program := range programs() {
		l.add(filepath.Join(o.programs, program), "/usr/bin/"+program, 0o755)
	}
	l.add(l.from("deployment/systemd/gpumeter-exporter.service"), "/usr/lib/systemd/system/gpumeter-exporter.service", 0o644)
	l.add(l.from("deployment/systemd/gpumeter.tmpfiles"), "/usr/lib/tmpfiles.d/gpumeter.conf", 0o644)
	l.config(l.from("deployment/systemd/gpumeter-exporter.default"), "/etc/default/gpumeter-exporter")
	l.add(l.from("deployment/systemd/profiling.conf"), examples+"/systemd/profiling.conf", 0o644)
	err := errors.Join(l.counters(), l.manual(), l.completions(ctx, o.host, o.format), l.examples(), l.documents(o), l.licences(o.licences))
	return l.files, err
}

func (l *layout) from(name string) string { return filepath.Join(l.root, filepath.FromSlash(name)) }

func (l *layout) add(source, destination string, mode fs.FileMode) {
	l.files = append(l.files, &files.Content{Source: source, Destination: destination, FileInfo: &files.ContentFileInfo{Mode: mode, Owner: "root", Group: "root"}})
}

func (l *layout) config(source, destination string) {
	l.add(source, destination, 0o644)
	l.files[len(l.files)-1].Type = files.TypeConfigNoReplace
}

// made adds a file with this text.
func (l *layout) made(destination string, data []byte) error {
	name := filepath.Join(l.stage, strings.ReplaceAll(strings.Trim(destination, "/"), "/", "_"))
	if err := os.WriteFile(name, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", destination, err)
	}
	l.add(name, destination, 0o644)
	return nil
}

// compressed adds a file with this text, as documents are kept.
func (l *layout) compressed(destination string, data []byte) error {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return fmt.Errorf("compress %s: %w", destination, err)
	}
	_, err = w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("compress %s: %w", destination, err)
	}
	return l.made(destination+".gz", b.Bytes())
}

// counters are what an operator may edit.
func (l *layout) counters() error {
	found, err := filepath.Glob(l.from("etc/*.csv"))
	if err != nil || len(found) == 0 {
		return fmt.Errorf("no counter files in %s: %w", l.from("etc"), errors.Join(err, fs.ErrNotExist))
	}
	for _, name := range found {
		l.config(name, "/etc/gpumeter/"+filepath.Base(name))
	}
	return nil
}

func (l *layout) manual() error {
	for _, program := range programs() {
		page, err := os.ReadFile(l.from("deployment/man/" + program + ".1"))
		if err != nil {
			return fmt.Errorf("read the manual: %w", err)
		}
		if err := l.compressed("/usr/share/man/man1/"+program+".1", page); err != nil {
			return err
		}
	}
	return nil
}

// completions asks the programs for their scripts.
func (l *layout) completions(ctx context.Context, host, format string) error {
	zsh := "/usr/share/zsh/vendor-completions/_"
	if format == "rpm" {
		zsh = "/usr/share/zsh/site-functions/_"
	}
	for _, program := range programs() {
		for shell, destination := range map[string]string{
			"bash": "/usr/share/bash-completion/completions/" + program,
			"zsh":  zsh + program,
			"fish": "/usr/share/fish/vendor_completions.d/" + program + ".fish",
		} {
			script, err := exec.CommandContext(ctx, filepath.Join(host, program), "completion", shell).Output()
			if err != nil {
				return fmt.Errorf("ask %s for its completions in %s: %w; is it built for this machine?", program, shell, err)
			}
			if err := l.made(destination, script); err != nil {
				return err
			}
		}
	}
	return nil
}

// examples are what is copied and changed: scripts for Slurm, rules and alerts, a price book.
func (l *layout) examples() error {
	for _, folder := range []string{"slurm", "prometheus"} {
		entries, err := os.ReadDir(l.from("etc/" + folder))
		if err != nil {
			return fmt.Errorf("read the examples: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() || strings.HasSuffix(e.Name(), "_test.yaml") || strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			mode := fs.FileMode(0o644)
			if strings.HasSuffix(e.Name(), ".sh") {
				mode = 0o755
			}
			l.add(l.from("etc/"+folder+"/"+e.Name()), path.Join(examples, folder, e.Name()), mode)
		}
	}
	for _, name := range []string{"prices.example.yaml", "prices.schema.json", "report.schema.json", "xid.yaml"} {
		l.add(l.from("etc/"+name), path.Join(examples, name), 0o644)
	}
	return nil
}

// documents are what a package has to have beside its programs.
func (l *layout) documents(o *options) error {
	changes, err := os.ReadFile(l.from("CHANGELOG.md"))
	if err != nil {
		return fmt.Errorf("read the changelog: %w", err)
	}
	errs := []error{l.compressed(docs+"/changelog", changes), l.made(docs+"/copyright", []byte(copyright))}
	if o.format == "deb" {
		entry := fmt.Sprintf("gpumeter (%s-%s) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- %s  %s\n",
			packageVersion(o.version), release, maintainer, o.time().Format("Mon, 02 Jan 2006 15:04:05 -0700"))
		errs = append(errs, l.compressed(docs+"/changelog.Debian", []byte(entry)))
	}
	return errors.Join(errs...)
}

const copyright = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gpumeter
Source: ` + homepage + `

Files: *
Copyright: 2026 gpumeter authors
License: Apache-2.0
 On Debian systems the text of this licence is in /usr/share/common-licenses/Apache-2.0.
Comment:
 The programs have Go's standard library and modules in them. Their licences
 are in ` + docs + `/licenses.
`

// licences are those of what the programs are made of.
func (l *layout) licences(dir string) error {
	if dir == "" {
		return nil
	}
	return filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		below, err := filepath.Rel(dir, name)
		if err != nil {
			return fmt.Errorf("find the licences' folders: %w", err)
		}
		l.add(name, path.Join(docs, "licenses", filepath.ToSlash(below)), 0o644)
		return nil
	})
}
