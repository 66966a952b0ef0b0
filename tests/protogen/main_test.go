// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	name   = "gpumeter/health/v1/health.proto"
	folder = "../../pkg/healthstream/healthv1"
)

func TestTheGeneratedFilesAreThoseOfTheProto(t *testing.T) {
	files, err := generate(t.Context(), name, filepath.Join(folder, "health.proto"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 {
		t.Errorf("%d files, want the messages and the stubs", len(files))
	}
	for file, want := range files {
		got, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run 'make update'", file)
		}
	}
}

func TestOtherProtosMakeOtherFiles(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(folder, "health.proto"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "health.proto")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(string(source), "uint64 version = 2;", "uint64 edition = 2;", 1))
	if err := run(t.Context(), []string{name, file}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(filepath.Dir(file), "health.pb.go"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(got), "GetEdition()") {
		t.Error("the new field is not in the file")
	}

	write("syntax = \"proto3\";\nmessage Broken { Nothing field = 1; }\n")
	if err := run(t.Context(), []string{name, file}); err == nil || !strings.Contains(err.Error(), "Nothing") {
		t.Errorf("of a broken proto it says %v", err)
	}
}
