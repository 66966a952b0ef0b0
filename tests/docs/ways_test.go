// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path"
	"slices"
	"strings"
)

// way is how a statement is checked. A statement without a way fails the test.
type way string

const (
	// ran: run here; its exit status is looked at.
	ran way = "run"
	// served: started here, has answered, and has ended at SIGINT without an error.
	served way = "started, asked and stopped"
	// parsed: the real program has understood its words, and ended where it needs a server.
	parsed way = "understood by the real program, without a server"
	// carried: kubectl has understood its words, and what a container was to run is run here.
	carried way = "understood by kubectl, and what a container was to run is run"
	// rendered: helm has understood its words and rendered the chart with these values.
	rendered way = "rendered by helm"
	// target: a target of the Makefile with variables that it knows.
	target way = "targets of the Makefile"
	// setting: a variable that the reader fills in.
	setting way = "settings"
	// elsewhere: its program needs what is not here; the list says what.
	elsewhere way = "listed, not run"
)

// ours are the programs that the pages are about.
var ours = []string{"gpumeter", "gpumeter-exporter", "gpumeter-device-plugin"}

// tools are small programs, and words of the shell, that change nothing here.
var tools = strings.Fields(`[ awk bash cat cp curl cut echo export grep gunzip head jq ls mkdir printf read rm sed sha256sum sort source
	tail tee test timeout true uniq wc xargs sleep test`)

// foreign are programs that are not run, and why not.
var foreign = map[string]string{
	"assemble":   "is made by make image",
	"amtool":     "asks an Alertmanager",
	"apt":        "changes the machine",
	"apt-get":    "changes the machine",
	"crane":      "asks the registry",
	"ctr":        "asks containerd; e2e imports the same archive",
	"curl":       "asks a server that is not here",
	"docker":     "needs a container engine",
	"dpkg":       "changes the machine",
	"git":        "changes the tree",
	"go":         "make test and make update run it",
	"grpcurl":    "is not here; the stream has its own tests",
	"htpasswd":   "is Apache's",
	"ipmitool":   "needs a BMC",
	"journalctl": "needs systemd",
	"kill":       "signals a program on a node",
	"less":       "is for a terminal",
	"nvidia-smi": "needs a GPU",
	"pidof":      "asks for a process on a node",
	"podman":     "needs a container engine",
	"promtool":   "make verify-rules and the e2e run it",
	"scontrol":   "needs Slurm",
	"skopeo":     "asks the registry",
	"srun":       "needs Slurm",
	"sbatch":     "needs Slurm",
	"ssh":        "needs another machine",
	"sudo":       "changes the machine",
	"systemctl":  "needs systemd",
	"tar":        "reads a file that is not here",
}

// wayOf is how a statement is checked, or "" where nobody has said.
func wayOf(s statement) way {
	names := s.programs()
	switch {
	case len(names) == 0:
		return setting
	case slices.ContainsFunc(names, func(n string) bool { return !known(n) }):
		return ""
	case s.call("make") != nil:
		return target
	case s.call("helm") != nil:
		return wayOfHelm(s)
	case s.call("kubectl") != nil && !hasForeign(names) && (strings.Contains(s.text, " -- ") || strings.Contains(s.text, ":9400/proxy/")):
		return carried
	case s.call("kubectl") != nil && !hasForeign(names):
		return parsed
	case s.call(ours...) != nil && serves(s.call(ours...)):
		return served
	case s.call(ours...) != nil && strings.Contains(s.text, "--prometheus"):
		return parsed
	case slices.Contains(names, "curl") && !strings.Contains(s.text, ":9400"):
		return elsewhere
	case hasForeign(names):
		return elsewhere
	}
	return ran
}

// known reports whether somebody has said what a program is.
func known(name string) bool {
	return slices.Contains(ours, name) || slices.Contains(tools, name) || foreign[name] != "" ||
		slices.Contains([]string{"make", "helm", "kubectl"}, name)
}

// wayOfHelm tells our chart from what helm would have to fetch.
func wayOfHelm(s statement) way {
	for _, w := range s.call("helm") {
		if strings.HasPrefix(w, "nvidia/") || strings.HasPrefix(w, "https://") || strings.HasPrefix(w, "oci://") {
			return elsewhere
		}
	}
	return rendered
}

func hasForeign(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return n != "curl" && foreign[n] != "" })
}

// serves reports whether a call of ours goes on until it is stopped.
func serves(call []string) bool {
	has := func(words ...string) bool {
		return slices.ContainsFunc(call, func(w string) bool {
			return slices.ContainsFunc(words, func(x string) bool { return w == x || strings.HasPrefix(w, x+"=") })
		})
	}
	if has("--help", "-h", "--version", "--check") {
		return false
	}
	switch path.Base(call[0]) {
	case "gpumeter":
		return len(call) > 1 && (call[1] == "demo" && !has("--for") || has("watch"))
	default:
		return true
	}
}

// text is what a block without a language is, if it is not the shell's: a page's block by the beginning of its first line.
type text struct{ page, begins, what string }

// texts are the blocks that are no commands.
var texts = []text{
	{"README.md", "gpumeter_allocation_share{", "samples"},
	{"README.md", "gpumeter_device_health{", "samples"},
	{"README.md", "gpumeter_namespace_gpu_seconds_total{", "samples"},
	{"docs/architecture.md", "roof ", "a picture"},
	{"docs/architecture.md", "Telemetry.Read", "a picture"},
	{"docs/healthstream.md", "for ever:", "pseudo code"},
	{"docs/ledger.md", "book/log-", "a list of files"},
	{"docs/ledger.md", "<CRC-32C>", "a form"},
}

// shellBlock reports whether a block is of the shell's language: it says so, or begins with a program that is known.
func shellBlock(b block) bool {
	switch b.lang {
	case "sh", "bash", "console", "shell":
		return true
	case "":
	default:
		return false
	}
	first := strings.TrimPrefix(b.firstLine(), "$ ")
	words := strings.Fields(first)
	for len(words) > 1 && strings.Contains(words[0], "=") {
		words = words[1:]
	}
	if len(words) == 0 {
		return false
	}
	return known(path.Base(words[0])) || strings.Contains(first, "=$(") && !strings.Contains(first, "{")
}
