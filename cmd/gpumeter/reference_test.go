// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/urfave/cli/v3"

	plugin "github.com/gpumeter/gpumeter/cmd/gpumeter-device-plugin/app"
	exporter "github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

// programs are the three commands, set up as they are when they run, with the environment of a fresh machine.
func programs(t *testing.T) []*cli.Command {
	t.Helper()
	none := func(string) (string, bool) { return "", false }
	serve := func(context.Context, exporter.Config) error { return nil }
	all := []*cli.Command{
		exporter.Command(io.Discard, io.Discard, serve),
		plugin.Command(none, io.Discard, io.Discard),
		command(io.Discard, io.Discard, time.Now),
	}
	for _, c := range all {
		c.Version = "devel"
		if err := c.Run(t.Context(), []string{c.Name, "--help"}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestGoldenConfigurationReference keeps docs/configuration.md, which is written from the commands themselves.
func TestGoldenConfigurationReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(configurationHead)
	for _, c := range programs(t) {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n", c.Name, sentence(c.Usage))
		writeFlags(&b, "###", c)
		for _, sub := range commandsOf(c) {
			fmt.Fprintf(&b, "\n### %s\n\n%s.\n", strings.Join(sub.path, " "), sentence(sub.command.Usage))
			writeFlags(&b, "", sub.command)
		}
	}
	b.WriteString(configurationTail)
	writtenAs(t, filepath.Join("..", "..", "docs", "configuration.md"), b.String())
}

// TestGoldenManualPages keeps deployment/man, which is written from the commands themselves.
func TestGoldenManualPages(t *testing.T) {
	for _, c := range programs(t) {
		var b strings.Builder
		fmt.Fprintf(&b, "%% %s 1 \"\" \"gpumeter\" \"gpumeter manual\"\n\n# NAME\n\n%s - %s\n\n# SYNOPSIS\n\n", c.Name, c.Name, c.Usage)
		subs := commandsOf(c)
		for _, sub := range subs {
			fmt.Fprintf(&b, "**%s** [*options*] %s\n\n", strings.Join(sub.path, " "), sub.command.ArgsUsage)
		}
		if len(subs) == 0 {
			fmt.Fprintf(&b, "**%s** [*options*]\n", c.Name)
			manualOptions(&b, c, "# OPTIONS")
		}
		if len(subs) > 0 {
			b.WriteString("# COMMANDS\n")
		}
		for _, sub := range subs {
			fmt.Fprintf(&b, "\n## %s\n\n%s.\n", strings.Join(sub.path[1:], " "), sentence(sub.command.Usage))
			manualOptions(&b, sub.command, "")
		}
		writtenAs(t, filepath.Join("..", "..", "deployment", "man", c.Name+".1"), string(md2man.Render([]byte(b.String()+manual()[c.Name]))))
	}
}

// manualOptions writes a command's flags as a list of terms.
func manualOptions(b *strings.Builder, c *cli.Command, head string) {
	last := "none"
	for _, f := range c.Flags {
		doc, ok := f.(cli.DocGenerationFlag)
		if !ok || slices.Contains([]string{"help", "version"}, f.Names()[0]) {
			continue
		}
		category := ""
		if f, ok := f.(cli.CategorizableFlag); ok {
			category = f.GetCategory()
		}
		if head != "" && last == "none" {
			fmt.Fprintf(b, "\n%s\n", head)
		}
		if head != "" && category != last && category != "" {
			fmt.Fprintf(b, "\n## %s\n", sentence(category))
		}
		last = category
		var names []string
		for _, n := range f.Names() {
			names = append(names, "**"+dashed(n)+"**")
		}
		term := strings.Join(names, ", ")
		value, usage := valueOf(doc)
		if value != "" {
			term += " *" + value + "*"
		}
		if d := defaultOf(doc); d != "" {
			usage += fmt.Sprintf(" (default: %s)", d)
		}
		for _, e := range doc.GetEnvVars() {
			usage += " [$" + e + "]"
		}
		fmt.Fprintf(b, "\n%s\n: %s\n", term, strings.NewReplacer("<", "\\<", "*", "\\*", "_", "\\_").Replace(usage))
	}
}

// valueOf is the word for a flag's value, none for one that has none, and what the flag does in words without marks.
func valueOf(doc cli.DocGenerationFlag) (value, usage string) {
	text := strings.ReplaceAll(doc.GetUsage(), "\n", " ")
	usage = strings.ReplaceAll(text, "`", "")
	if !doc.TakesValue() {
		return "", usage
	}
	if parts := strings.Split(text, "`"); len(parts) > 2 && parts[1] == strings.ToUpper(parts[1]) {
		return parts[1], usage
	}
	return strings.ToUpper(doc.TypeName()), usage
}

// subcommand is a command below a program, with the words that call it.
type subcommand struct {
	path    []string
	command *cli.Command
}

// commandsOf are all that do something, in order.
func commandsOf(c *cli.Command, path ...string) []subcommand {
	path = append(slices.Clone(path), c.Name)
	var out []subcommand
	for _, sub := range c.Commands {
		if sub.Hidden || sub.Name == "help" || sub.Name == "completion" {
			continue
		}
		deeper := commandsOf(sub, path...)
		if len(deeper) == 0 || len(sub.Flags) > 1 {
			out = append(out, subcommand{append(slices.Clone(path), sub.Name), sub})
		}
		out = append(out, deeper...)
	}
	return out
}

func sentence(usage string) string {
	return strings.ToUpper(usage[:1]) + usage[1:]
}

// writeFlags writes a command's flags as tables, one for each category in the order in which they come.
func writeFlags(b *strings.Builder, level string, c *cli.Command) {
	categories := []string{}
	rows := map[string][]string{}
	for _, f := range c.Flags {
		doc, ok := f.(cli.DocGenerationFlag)
		if !ok || slices.Contains([]string{"help", "version"}, f.Names()[0]) {
			continue
		}
		category := ""
		if f, ok := f.(cli.CategorizableFlag); ok {
			category = f.GetCategory()
		}
		if !slices.Contains(categories, category) {
			categories = append(categories, category)
		}
		rows[category] = append(rows[category], flagRow(f, doc))
	}
	slices.SortStableFunc(categories, func(a, b string) int { return cmp.Compare(min(len(a), 1), min(len(b), 1)) })
	for _, category := range categories {
		if category != "" && level != "" {
			fmt.Fprintf(b, "\n%s %s\n", level, sentence(category))
		}
		fmt.Fprintf(b, "\n| flag | environment | default | |\n|---|---|---|---|\n%s", strings.Join(rows[category], ""))
	}
}

func flagRow(f cli.Flag, doc cli.DocGenerationFlag) string {
	var names, env []string
	for _, n := range f.Names() {
		names = append(names, "`"+dashed(n)+"`")
	}
	for _, e := range doc.GetEnvVars() {
		env = append(env, "`"+e+"`")
	}
	value := defaultOf(doc)
	if value != "" {
		value = "`" + value + "`"
	}
	usage := strings.NewReplacer("|", "\\|", "\n", " ").Replace(doc.GetUsage())
	return fmt.Sprintf("| %s | %s | %s | %s |\n", strings.Join(names, ", "), strings.Join(env, ", "), value, usage)
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// defaultOf is what a flag is without being given, empty where that is nothing.
func defaultOf(doc cli.DocGenerationFlag) string {
	value := doc.GetDefaultText()
	if value == "" {
		value = doc.GetValue()
	}
	switch value = strings.Trim(value, "\""); value {
	case "[]", "false":
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
}

// writtenAs holds text to a file, or writes it.
func writtenAs(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, []byte(text)) {
		t.Errorf("%s is not what the commands say now; run `make update`", file)
	}
}
