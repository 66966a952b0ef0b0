// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// parse is the Config of a command line and environment.
func parse(t *testing.T, env map[string]string, args ...string) (Config, error) {
	t.Helper()
	for _, k := range []string{"NODE_NAME", "POD_NAME", "POD_NAMESPACE"} {
		t.Setenv(k, "")
	}
	for k, v := range env {
		t.Setenv(k, v)
	}
	var got Config
	err := Command(io.Discard, io.Discard, func(_ context.Context, c Config) error {
		got = c
		return nil
	}).Run(t.Context(), append([]string{"gpumeter-exporter"}, args...))
	return got, err
}

func TestNoFlagsGiveTheDefaults(t *testing.T) {
	got, err := parse(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Defaults(), got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("without flags (-defaults +got):\n%s", d)
	}
}

func TestFlagsAndEnvironmentOfDcgmExporter(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want func(*Config)
	}{
		{"short flags", nil, []string{"-f", "/x.csv", "-a", "127.0.0.1:1", "-c", "5000", "-k", "-o", "-n"}, func(c *Config) {
			c.Collectors, c.CollectorsSet, c.Address, c.Interval = "/x.csv", true, "127.0.0.1:1", "5000"
			c.Kubernetes, c.UseOldNamespace, c.NoHostname = true, true, true
		}},
		{"long flags with equals", nil, []string{"--collectors=/x.csv", "--kubernetes=true", "--collect-interval=30s"}, func(c *Config) {
			c.Collectors, c.CollectorsSet, c.Kubernetes, c.Interval = "/x.csv", true, true, "30s"
		}},
		{"environment of the Helm chart", map[string]string{
			"DCGM_EXPORTER_KUBERNETES": "true", "DCGM_EXPORTER_LISTEN": ":9500", "DCGM_EXPORTER_INTERVAL": "15000", "NODE_NAME": "n1",
			"DCGM_EXPORTER_COLLECTORS": "/etc/dcgm-exporter/dcp-metrics-included.csv",
		}, nil, func(c *Config) {
			c.Kubernetes, c.Address, c.Interval, c.NodeName = true, ":9500", "15000", "n1"
			c.Collectors, c.CollectorsSet = "/etc/dcgm-exporter/dcp-metrics-included.csv", true
		}},
		{"a flag wins over the environment", map[string]string{"DCGM_EXPORTER_LISTEN": ":1"}, []string{"-a", ":2"}, func(c *Config) { c.Address = ":2" }},
		{"resource names are a list", map[string]string{"NVIDIA_RESOURCE_NAMES": "a.com/gpu,b.com/gpu"}, nil, func(c *Config) {
			c.ResourceNames = []string{"a.com/gpu", "b.com/gpu"}
		}},
		{"an empty variable is none", map[string]string{
			"DCGM_EXPORTER_INTERVAL": "", "DCGM_EXPORTER_KUBERNETES": "", "DCGM_EXPORTER_COLLECTORS": "", "NVIDIA_RESOURCE_NAMES": "",
		}, nil, func(*Config) {}},
		{"virtual GPUs by their odd variable", map[string]string{"KUBERNETES_VIRTUAL_GPUS": "true"}, nil, func(c *Config) { c.VirtualGPUs = true }},
		{"selections and windows", nil, []string{"-d", "g:0,1", "-s", "i", "-p", "g:0", "-x", "60000", "--clock-events-count-window-size", "10m"}, func(c *Config) {
			c.Devices, c.SwitchDevices, c.CPUDevices, c.XIDWindow, c.ClockWindow = "g:0,1", "i", "g:0", "60000", "10m"
		}},
		{"selections and windows of a chart", map[string]string{
			"DCGM_EXPORTER_DEVICES_STR": "g", "DCGM_EXPORTER_OTHER_DEVICES_STR": "g:1", "DCGM_EXPORTER_CPU_DEVICES_STR": "i:0-3",
			"DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE": "1000", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE": "",
		}, nil, func(c *Config) {
			c.Devices, c.SwitchDevices, c.CPUDevices, c.XIDWindow = "g", "g:1", "i:0-3", "1000"
		}},
		{"a host engine", nil, []string{"-r", "localhost:5555"}, func(c *Config) { c.HostEngine = "localhost:5555" }},
		{"a host engine of a chart", map[string]string{"DCGM_REMOTE_HOSTENGINE_INFO": "unix:///run/nvhostengine.sock"}, nil, func(c *Config) {
			c.HostEngine = "unix:///run/nvhostengine.sock"
		}},
		{"the source and its libraries", map[string]string{
			"GPUMETER_SOURCE": "dcgm", "GPUMETER_DCGM_LIBRARY": "/a/libdcgm.so.4", "GPUMETER_NVML_LIBRARY": "/b/libnvidia-ml.so.1", "GPUMETER_DCGM_RELEASE": "true",
		}, nil, func(c *Config) {
			c.Source, c.DCGMLibrary, c.NVMLLibrary, c.DCGMRelease = "dcgm", "/a/libdcgm.so.4", "/b/libnvidia-ml.so.1", true
		}},
		{"the engine's log", map[string]string{"DCGM_EXPORTER_ENABLE_DCGM_LOG": "true"}, []string{"--dcgm-log-level", "DEBUG"}, func(c *Config) {
			c.DCGMLog, c.DCGMLogLevel = true, "DEBUG"
		}},
		{"pod labels", map[string]string{"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true"}, []string{"--kubernetes-pod-label-allowlist-regex=^app$,^team$"}, func(c *Config) {
			c.PodLabels, c.PodLabelAllowlist = true, "^app$,^team$"
		}},
		{"not yet", map[string]string{"KUBERNETES_ENABLE_DRA": "true"}, []string{"--fake-gpus", "-m", "ns:cm"}, func(c *Config) {
			c.NotYet = []string{"--configmap-data=ns:cm", "--kubernetes-enable-dra=true", "--fake-gpus=true"}
		}},
		{"health", map[string]string{"GPUMETER_LEDGER_DIR": "/data", "GPUMETER_HEALTH_SOCKET_GROUP": "gpu", "GPUMETER_HEALTH_STUCK_AFTER": "5m"}, []string{
			"--xid-file=/x.yaml", "--health-hold-down=10s", "--health-flap-limit=-1", "--health-flap-window=2h",
			"--health-contained-limit=3", "--health-contained-window=30m", "--health-socket=/s", "--health-repartition-limit=0s",
		}, func(c *Config) {
			c.Health = HealthConfig{
				LedgerDir: "/data", LedgerDirSet: true, XIDFile: "/x.yaml", HoldDown: 10 * time.Second, FlapLimit: -1, FlapWindow: 2 * time.Hour,
				ContainedLimit: 3, ContainedWindow: 30 * time.Minute, StuckAfter: 5 * time.Minute, Socket: "/s", SocketSet: true, SocketGroup: "gpu",
			}
		}},
		{"neither kept nor served", nil, []string{"--ledger-dir=", "--health-socket="}, func(c *Config) {
			c.Health.LedgerDir, c.Health.LedgerDirSet, c.Health.Socket, c.Health.SocketSet = "", true, "", true
		}},
		{"model names", nil, []string{"--rbmn"}, func(c *Config) { c.ReplaceBlanks = true }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := Defaults()
			tt.want(&want)
			got, err := parse(t, tt.env, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestUnknownFlagAndStrayWordAreErrors(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"stray"}} {
		if _, err := parse(t, nil, args...); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

func TestDuration(t *testing.T) {
	tests := []struct {
		in   string
		want time.Duration
		bad  string
	}{
		{"30000", 30 * time.Second, ""},
		{" 100 ", 100 * time.Millisecond, ""},
		{"30s", 30 * time.Second, ""},
		{"1m30s", 90 * time.Second, ""},
		{"", 0, "neither"},
		{"30 s", 0, "neither"},
		{"99999999999", 0, "longer than a day"},
	}
	for _, tt := range tests {
		got, err := Duration(tt.in)
		if tt.bad != "" {
			if err == nil || !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("Duration(%q): error %v, want one with %q", tt.in, err, tt.bad)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("Duration(%q) = %v, %v, want %v", tt.in, got, err, tt.want)
		}
	}
}

func TestUsageErrorIsOneSentence(t *testing.T) {
	var out bytes.Buffer
	err := Command(&out, &out, func(context.Context, Config) error { return nil }).Run(t.Context(), []string{"gpumeter-exporter", "--web-read-timeout", "10"})
	if err == nil || !strings.Contains(err.Error(), "web-read-timeout") || out.Len() > 0 {
		t.Errorf("error %v, and %d bytes of help around it", err, out.Len())
	}
}

func TestWrongConfigurationSaysWhatToDo(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"interval in seconds", func(c *Config) { c.Interval = "3" }, []string{"--collect-interval", "3ms", "100ms", "did you mean 3s"}},
		{"negative interval", func(c *Config) { c.Interval = "-5" }, []string{"--collect-interval -5"}},
		{"kubelet age", func(c *Config) { c.KubeletMaxAge = -time.Second }, []string{"--kubelet-max-age", "more than 0"}},
		{"no read timeout", func(c *Config) { c.ReadTimeout = 0 }, []string{"--web-read-timeout"}},
		{"no counters", func(c *Config) { c.Collectors, c.CollectorsSet = "", true }, []string{"--collectors is empty"}},
		{"pattern without kubernetes", func(c *Config) { c.Kubernetes, c.ResourcePattern = false, []string{"***["} }, []string{"--resource-pattern", "***["}},
		{"no scenario", func(c *Config) { c.Scenario = "" }, []string{"--scenario", "default"}},
		{"interval of a day", func(c *Config) { c.Interval = "20h" }, []string{"--collect-interval", "1h"}},
		{"id type", func(c *Config) { c.GPUIDType = "device_name" }, []string{"--kubernetes-gpu-id-type", "device-name"}},
		{"host label", func(c *Config) { c.HostnameLabel = "HOST" }, []string{"--hostname-label", "Hostname"}},
		{"log format", func(c *Config) { c.LogFormat = "xml" }, []string{"--log-format", "json"}},
		{"open pprof", func(c *Config) { c.EnablePprof, c.Address = true, ":9400" }, []string{"--enable-pprof", "--web-config-file"}},
		{"speed", func(c *Config) { c.Speed = -1 }, []string{"--speed"}},
		{"policy", func(c *Config) { c.MIGPolicy = "max" }, []string{"--mig-policy", "max", "table"}},
		{"weights without table", func(c *Config) { c.MIGWeights = []string{"1g.10gb=1/8"} }, []string{"--mig-weight", "table"}},
		{"table without weights", func(c *Config) { c.MIGPolicy = "table" }, []string{"--mig-weight"}},
		{"weight without fraction", func(c *Config) { c.MIGPolicy, c.MIGWeights = "table", []string{"1g.10gb"} }, []string{"1g.10gb", "PROFILE=FRACTION"}},
		{"weight twice", func(c *Config) {
			c.MIGPolicy, c.MIGWeights = "table", []string{"1g.10gb=1/8", "1g.10gb=1/7"}
		}, []string{"1g.10gb twice"}},
		{"pattern", func(c *Config) { c.Kubernetes, c.ResourcePattern = true, []string{"not a resource"} }, []string{"--resource-pattern", "not a resource"}},
		{"source", func(c *Config) { c.Source = "rocm" }, []string{"--source", "rocm"}},
		{"no libraries", func(c *Config) {
			c.Source, c.DCGMLibrary, c.NVMLLibrary = "auto", "/nowhere/libdcgm.so.4", "/nowhere/libnvidia-ml.so.1"
		}, []string{"/nowhere/libdcgm.so.4", "/nowhere/libnvidia-ml.so.1", "--source=sim", "demo"}},
		{"selection", func(c *Config) { c.Devices = "g:3-1" }, []string{"--devices", "3-1", "1-3"}},
		{"empty selection", func(c *Config) { c.SwitchDevices = "" }, []string{"--switch-devices", "nothing is selected"}},
		{"selection of CPUs", func(c *Config) { c.CPUDevices = "c:1" }, []string{"--cpu-devices", "c:1"}},
		{"nothing is selected", func(c *Config) { c.Devices = "g:8-9" }, []string{"--devices g:8-9 selects nothing", "GPUs 0-7", "GPU instances"}},
		{"host engine", func(c *Config) { c.HostEngine = "http://x" }, []string{"--remote-hostengine-info", "http"}},
		{"window", func(c *Config) { c.XIDWindow = "5 minutes" }, []string{"--xid-count-window-size", "5 minutes"}},
		{"no window", func(c *Config) { c.ClockWindow = "0" }, []string{"--clock-events-count-window-size", "1ms"}},
		{"window of a week", func(c *Config) { c.XIDWindow = "168h" }, []string{"--xid-count-window-size", "24h"}},
		{"window too long for the interval", func(c *Config) { c.ClockWindow = "24h" }, []string{"--clock-events-count-window-size", "--collect-interval"}},
		{"log level", func(c *Config) { c.DCGMLogLevel = "LOUD" }, []string{"--dcgm-log-level", "LOUD", "VERB"}},
		{"scenario", func(c *Config) { c.Scenario = "h100" }, []string{"--scenario", "h100x8-exclusive"}},
		{"hold-down", func(c *Config) { c.Health.HoldDown = -time.Second }, []string{"--health-hold-down", "more than 0"}},
		{"flap limit", func(c *Config) { c.Health.FlapLimit = 0 }, []string{"--health-flap-limit 0", "-1"}},
		{"flap window", func(c *Config) { c.Health.FlapWindow = 1e6 * time.Hour }, []string{"--health-flap-window", "168h"}},
		{"contained limit", func(c *Config) { c.Health.ContainedLimit = 1 }, []string{"--health-contained-limit 1", "2 to 64"}},
		{"contained window", func(c *Config) { c.Health.ContainedWindow = 0 }, []string{"--health-contained-window"}},
		{"repartition", func(c *Config) { c.Health.RepartitionLimit = 24 * time.Hour }, []string{"--health-repartition-limit 24h", "such as 30m"}},
		{"stuck", func(c *Config) { c.Health.StuckAfter = 0 }, []string{"--health-stuck-after"}},
		{"stuck too soon", func(c *Config) { c.Health.StuckAfter = 4 * time.Second }, []string{"--health-stuck-after 4s", "5s or more"}},
		{"a ledger in a file", func(c *Config) { c.Health.LedgerDir, c.Health.LedgerDirSet = "/proc/self/exe", true }, []string{"--ledger-dir /proc/self/exe", "not a folder"}},
		{"no XID file", func(c *Config) { c.Health.XIDFile = "/nowhere/xid.yaml" }, []string{"--xid-file", "/nowhere/xid.yaml"}},
		{"a socket in no folder", func(c *Config) { c.Health.Socket, c.Health.SocketSet = "/proc/self/exe/health.sock", true }, []string{"--health-socket", "/proc/self/exe/health.sock"}},
		{"a socket's group", func(c *Config) {
			c.Health.Socket, c.Health.SocketSet, c.Health.SocketGroup = filepath.Join(t.TempDir(), "s"), true, "no-such-group"
		}, []string{"--health-socket", "no-such-group"}},
		{"counters", func(c *Config) { c.Collectors, c.CollectorsSet = "/nowhere/x.csv", true }, []string{"/nowhere/x.csv", "--collectors"}},
		{"web config", func(c *Config) { c.WebConfigFile = "/nowhere/web.yml" }, []string{"/nowhere/web.yml"}},
		{"address", func(c *Config) { c.Address = "300.1.1.1:1" }, []string{"--address", "300.1.1.1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := simulated()
			tt.change(&cfg)
			a, err := New(cfg, io.Discard)
			if err == nil {
				// What is not refused would serve for ever.
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				err = a.Run(ctx)
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}
