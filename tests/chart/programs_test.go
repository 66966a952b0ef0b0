// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"

	plugin "github.com/gpumeter/gpumeter/cmd/gpumeter-device-plugin/app"
	exporter "github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
	"github.com/gpumeter/gpumeter/etc"
)

// lawOfPrograms: the programs take every flag and every variable that they are given.
func lawOfPrograms(t testing.TB, r rendering) {
	t.Helper()
	for name, c := range r.containers(t) {
		var known []cli.Flag
		switch name {
		case "exporter":
			cmd := exporter.Command(io.Discard, io.Discard, func(_ context.Context, cfg exporter.Config) error { return nil })
			if err := cmd.Run(t.Context(), append([]string{name}, args(c)...)); err != nil {
				t.Errorf("the exporter does not take %q: %v", args(c), err)
			}
			known = cmd.Flags
		case "device-plugin":
			cmd := plugin.Command(environment(c), io.Discard, io.Discard)
			cmd.Action = func(context.Context, *cli.Command) error { return nil }
			if err := cmd.Run(t.Context(), append([]string{name}, args(c)...)); err != nil {
				t.Errorf("the device plugin does not take %q: %v", args(c), err)
			}
			known = cmd.Flags
		default:
			t.Errorf("%s is no program", name)
		}
		for _, e := range listAt(c, "env") {
			if v := stringAt(e, "name"); !read(known, v) && !strings.Contains(strings.Join(args(c), " "), "$("+v+")") {
				t.Errorf("%s reads no variable %s", name, v)
			}
		}
	}
}

// read says whether a program, or the container runtime, reads a variable.
func read(flags []cli.Flag, variable string) bool {
	if slices.Contains([]string{"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_MIG_MONITOR_DEVICES"}, variable) {
		return true
	}
	return slices.ContainsFunc(flags, func(f cli.Flag) bool {
		documented, ok := f.(cli.DocGenerationFlag)
		return ok && slices.Contains(documented.GetEnvVars(), variable)
	})
}

// environment is a container's, with a word for what the kubelet would fill in.
func environment(container map[string]any) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, e := range listAt(container, "env") {
			if stringAt(e, "name") == name {
				if value, fixed := at(e, "value").(string); fixed {
					return value, true
				}
				return "filled-in", true
			}
		}
		return "", false
	}
}

// laidOut writes the ConfigMaps that a pod mounts, and the image's counter files, below a folder, as a container sees them.
func laidOut(t *testing.T, r rendering) string {
	t.Helper()
	folder := t.TempDir()
	put := func(path string, data []byte) {
		path = filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"default-counters.csv", "dcp-metrics-included.csv", "1.x-compatibility-metrics.csv"} {
		data, err := etc.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		put("/etc/dcgm-exporter/"+name, data)
	}
	where := map[string]string{}
	for _, c := range r.containers(t) {
		for _, m := range listAt(c, "volumeMounts") {
			where[stringAt(m, "name")] = stringAt(m, "mountPath")
		}
	}
	for _, v := range listAt(r.pod(t), "spec", "volumes") {
		for _, o := range r.all("ConfigMap") {
			if o.GetName() != stringAt(v, "configMap", "name") {
				continue
			}
			for key, text := range mapAt(o.Object, "data") {
				put(filepath.Join(where[stringAt(v, "name")], key), []byte(text.(string)))
			}
		}
	}
	return folder
}

// below are flags as the program gets them, with the container's files where they were laid out.
func below(folder string, args []string) []string {
	out := slices.Clone(args)
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], "$(NODE_IP)", "192.0.2.1")
		for _, prefix := range []string{"/etc/gpumeter/", "/etc/dcgm-exporter/"} {
			out[i] = strings.Replace(out[i], "="+prefix, "="+folder+prefix, 1)
		}
	}
	return out
}

// elsewhere are the stories whose files are in objects that the chart does not make.
func elsewhere(s story) bool { return s.name == "existing-objects" }

func TestTheExporterTakesTheCountersAndEverySetting(t *testing.T) {
	eachStory(t, func(t *testing.T, s story, r rendering) {
		c, runs := r.containers(t)["exporter"]
		if !runs || elsewhere(s) {
			t.Skip("there is nothing to read")
		}
		folder := laidOut(t, r)
		cmd := exporter.Command(io.Discard, io.Discard, func(_ context.Context, cfg exporter.Config) error {
			if err := cfg.Validate(); err != nil {
				t.Error(err)
			}
			_, counters, problems, err := cfg.Counters()
			if err != nil || len(problems) > 0 || len(counters.Fields()) == 0 {
				t.Errorf("the counters: %v %v, %d fields", err, problems, len(counters.Fields()))
			}
			return nil
		})
		if err := cmd.Run(t.Context(), append([]string{"exporter"}, below(folder, args(c))...)); err != nil {
			t.Error(err)
		}
	})
}

func TestTheDevicePluginTakesTheConfigs(t *testing.T) {
	eachStory(t, func(t *testing.T, s story, r rendering) {
		c, runs := r.containers(t)["device-plugin"]
		if !runs || elsewhere(s) {
			t.Skip("there is nothing to read")
		}
		flags := below(laidOut(t, r), args(c))
		// On a pretended node, so that the test needs no GPU: MPS and CDI are asked for all the same.
		flags = append(slices.DeleteFunc(flags, func(a string) bool { return strings.HasPrefix(a, "--source=") }), "--source=sim", "--check")
		var said bytes.Buffer
		if err := plugin.Command(environment(c), &said, &said).Run(t.Context(), append([]string{"plugin"}, flags...)); err != nil {
			t.Errorf("%v\n%s", err, said.String())
		}
	})
}

func TestAFlagThatAProgramDoesNotKnowIsSeen(t *testing.T) {
	for _, values := range []string{
		`exporter: {extraArgs: [--no-such-flag]}`, `devicePlugin: {extraArgs: [--no-such-flag=1]}`,
		`exporter: {extraEnv: [{name: NO_SUCH_VARIABLE, value: x}]}`, `devicePlugin: {extraEnv: [{name: DCGM_EXPORTER_LISTEN, value: x}]}`,
	} {
		seen := &recorder{TB: t}
		lawOfPrograms(seen, render(t, valuesOf(t, values)))
		if !seen.failed {
			t.Errorf("%s passes", values)
		}
	}
}
