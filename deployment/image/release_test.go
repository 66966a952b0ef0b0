// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// released is a repository of a release: the script, a changelog, and a commit with a tag.
func released(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script, err := os.ReadFile("../../tests/tools/release.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"tests/tools/release.sh": string(script),
		"CHANGELOG.md":           "# Changelog\n\n## [Unreleased]\n\n- later\n\n## [1.2.0] - 2026-12-01\n\n### Added\n\n- a thing\n\n## [1.1.0] - 2026-11-01\n\n- old\n\n[1.2.0]: https://example.com\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "."}, {"commit", "--quiet", "--message", "first"}, {"tag", "v1.2.0"}} {
		if out, err := git(dir, args...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
	}
	return dir
}

func git(dir string, args ...string) *exec.Cmd {
	command := exec.Command("git", args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	return command
}

// check has the script say whether it would release, and with which notes.
func check(t *testing.T, dir, version, snapshot string) (string, error) {
	t.Helper()
	command := exec.Command("bash", filepath.Join(dir, "tests/tools/release.sh"))
	command.Env = append(os.Environ(), "CHECK=1", "VERSION="+version, "SNAPSHOT="+snapshot)
	out, err := command.CombinedOutput()
	return string(out), err
}

func TestAReleaseHasTheChangelogsSectionForItsNotes(t *testing.T) {
	dir := released(t)
	if out, err := check(t, dir, "v1.2.0", ""); err != nil || out != "### Added\n\n- a thing\n" {
		t.Errorf("%v: %q", err, out)
	}
	if out, err := check(t, dir, "abc-dirty", "1"); err != nil || out != "- later\n" {
		t.Errorf("a snapshot: %v: %q", err, out)
	}
}

func TestWhatIsNoReleaseIsRefused(t *testing.T) {
	dir := released(t)
	for version, why := range map[string]string{
		"1.2.0": "form v1.2.3", "v1.2": "form v1.2.3", "v1.2.0-3-gabc": "form v1.2.3",
		"v1.4.0": "does not have the tag",
	} {
		if out, err := check(t, dir, version, ""); err == nil || !strings.Contains(out, why) {
			t.Errorf("%s: %v: %s", version, err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte("# Changelog\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := check(t, dir, "v1.2.0", ""); err == nil || !strings.Contains(out, "changes that are in no commit") {
		t.Errorf("a dirty tree: %v: %s", err, out)
	}
	for _, args := range [][]string{{"commit", "--all", "--quiet", "--message", "second"}, {"tag", "v1.5.0"}} {
		if out, err := git(dir, args...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
	}
	if out, err := check(t, dir, "v1.5.0", ""); err == nil || !strings.Contains(out, "no section") {
		t.Errorf("without a section: %v: %s", err, out)
	}
}
