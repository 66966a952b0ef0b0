// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	plugin "github.com/gpumeter/gpumeter/cmd/gpumeter-device-plugin/app"
	exporter "github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

// asProgram has the test's own program be one of ours, the one whose name it was called by.
const asProgram = "GPUMETER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(beProgram())
	}
	os.Exit(m.Run())
}

func beProgram() int {
	none := func(string) (string, bool) { return "", false }
	serve := func(context.Context, exporter.Config) error { return nil }
	name := filepath.Base(os.Args[0])
	c := command(os.Stdout, os.Stderr, time.Now)
	switch name {
	case "gpumeter-exporter":
		c = exporter.Command(os.Stdout, os.Stderr, serve)
	case "gpumeter-device-plugin":
		c = plugin.Command(none, os.Stdout, os.Stderr)
	}
	if err := c.Run(context.Background(), os.Args); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}

// shells are how a script is sourced and asked what may follow the words of $LINE, each answer in a line that begins with it.
func shells() map[string]string {
	return map[string]string{
		"bash": `source /usr/share/bash-completion/bash_completion
			source <("$PROGRAM" completion bash)
			COMP_LINE=$LINE COMP_POINT=${#LINE}; read -ra COMP_WORDS <<< "$LINE"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
			"$(complete -p "$PROGRAM" | sed 's/.*-F \([^ ]*\).*/\1/')"
			printf '%s\n' "${COMPREPLY[@]}"`,
		// Without a terminal, what zsh would show is taken from the function that it is handed to.
		"zsh": `compdef() { :; }; _describe() { print -rl -- ${(P)2}; }
			source <("$PROGRAM" completion zsh)
			words=(${=LINE}); _$PROGRAM`,
		"fish": `$PROGRAM completion fish | source; complete -C "$LINE"`,
	}
}

func TestCompletionsWorkInRealShells(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, program := range []string{"gpumeter", "gpumeter-exporter", "gpumeter-device-plugin"} {
		if err := os.Symlink(self, filepath.Join(bin, program)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ line, want, not string }{
		{"gpumeter re", "report", "--ledger"},
		{"gpumeter report --pro", "--prometheus", "verify"},
		{"gpumeter-exporter --collect-", "--collect-interval", "report"},
		{"gpumeter-device-plugin --config-", "--config-dir", "report"},
	} {
		for shell, script := range shells() {
			t.Run(shell+" "+tt.line, func(t *testing.T) {
				if !has(shell) {
					t.Skip(shell + " is not installed, or lacks bash-completion")
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				program, _, _ := strings.Cut(tt.line, " ")
				if shell == "fish" {
					script = strings.NewReplacer("$PROGRAM", program, "$LINE", tt.line).Replace(script)
				}
				c := exec.CommandContext(ctx, shell, map[string][]string{"bash": {"--norc", "-c"}, "zsh": {"-f", "-c"}, "fish": {"--no-config", "-c"}}[shell]...)
				c.Args = append(c.Args, script)
				c.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir(), asProgram + "=1", "PROGRAM=" + program, "LINE=" + tt.line}
				said, err := c.CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, said)
				}
				lines := "\n" + string(said)
				if !strings.Contains(lines, "\n"+tt.want) {
					t.Errorf("after %q it does not offer %s:\n%s", tt.line, tt.want, said)
				}
				if strings.Contains(lines, "\n"+tt.not) {
					t.Errorf("after %q it offers %s:\n%s", tt.line, tt.not, said)
				}
			})
		}
	}
}

func has(shell string) bool {
	if shell == "bash" {
		if _, err := os.Stat("/usr/share/bash-completion/bash_completion"); err != nil {
			return false
		}
	}
	_, err := exec.LookPath(shell)
	return err == nil
}

func TestEachProgramSaysWhatItWasBuiltFrom(t *testing.T) {
	for name, line := range map[string]string{
		"gpumeter": command(nil, nil, time.Now).Version, "gpumeter-exporter": exporter.Command(nil, nil, nil).Version,
		"gpumeter-device-plugin": plugin.Command(func(string) (string, bool) { return "", false }, nil, nil).Version,
	} {
		for _, want := range []string{exporter.Version() + " (revision ", runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH} {
			if !strings.Contains(line, want) {
				t.Errorf("%s --version lacks %q: %s", name, want, line)
			}
		}
	}
}
