// SPDX-License-Identifier: Apache-2.0

package main

// configurationHead and configurationTail stand around what the flags say of themselves.
const (
	configurationHead = `# Configuration

Every flag of the three programs, as the programs tell them; written by ` + "`make update`" + `. A flag goes before its environment variable, that before the
default. An empty variable is as good as none. Names and variables are those of dcgm-exporter and of NVIDIA's device plugin where they have the same thing.

Files beside the flags:

| file | given by | its form |
|---|---|---|
| counters | ` + "`gpumeter-exporter --collectors`" + ` | dcgm-exporter's CSV, shipped in ` + "`etc/`" + `; taken anew when it changes or on SIGHUP; ` + "[migration.md](migration.md)" + ` |
| TLS and passwords | ` + "`--web-config-file`" + ` of exporter and device plugin | the Prometheus exporter toolkit's web configuration; [security.md](security.md) |
| classes of XIDs | ` + "`--xid-file`" + ` of both | rows like those of ` + "`etc/xid.yaml`" + `; [health.md](health.md) |
| what is handed out | ` + "`gpumeter-device-plugin --config-file`" + `, or ` + "`--config-dir`" + ` and a label of the node | NVIDIA's config, version v1; [device-plugin.md](device-plugin.md) |
| prices | ` + "`gpumeter report --prices`" + ` | a dated price book, schema in ` + "`etc/prices.schema.json`" + `; [reports.md](reports.md) |
| jobs | ` + "`gpumeter-exporter --hpc-job-mapping-dir`" + ` | a file for each GPU with a job on each line; [slurm.md](slurm.md) |
| pretend nodes | ` + "`--scenario`" + ` | YAML like that in ` + "`pkg/sim/scenarios/`" + ` |
`
	configurationTail = `
## Shell completion

` + "`gpumeter completion bash`" + ` prints a script; so do both other programs, and zsh, fish and pwsh are known too. The Debian package brings
the scripts along. That for bash needs the package bash-completion.

    source <(gpumeter completion bash)
`
)

// manual is what a manual page says beside the flags.
func manual() map[string]string {
	return map[string]string{
		"gpumeter-exporter": `
# FILES

**/etc/dcgm-exporter/default-counters.csv**
: the counters to export; the built-in ones where it is missing

**/var/lib/gpumeter**
: the ledger of charges, the conditions of broken GPUs and the node's inventory, kept over restarts

**/run/gpumeter/health.sock**
: verdicts for the device plugin, and operators' words

**/var/lib/kubelet/pod-resources/kubelet.sock**
: where the kubelet says who holds which device

# SIGNALS

**SIGHUP**
: read the counters anew

**SIGUSR1**
: with --dcgm-release, let go of the GPU driver, and take it up again the next time

**SIGTERM, SIGINT**
: commit the ledger and end; a second one ends at once

# EXIT STATUS

0 after a signal, 1 where something is wrong with flags, files or the address. No GPU, kubelet or library that is missing ends the exporter.

# EXAMPLES

On a node of a Kubernetes cluster:

    gpumeter-exporter --kubernetes

On a machine without a GPU:

    gpumeter-exporter --source=sim --scenario=bad-day --kubernetes --ledger-dir= --health-socket=

# SEE ALSO

gpumeter(1), gpumeter-device-plugin(1), https://github.com/gpumeter/gpumeter
`,
		"gpumeter-device-plugin": `
# FILES

**/var/lib/kubelet/device-plugins/kubelet.sock**
: where resources are registered

**/run/gpumeter/health.sock**
: the exporter's verdicts

**/var/lib/gpumeter**
: conditions of its own, the last verdicts and the node's config, kept over restarts

**/var/run/cdi**
: CDI specs, with a CDI strategy

# SIGNALS

**SIGHUP**
: read the config anew

**SIGTERM, SIGINT**
: end; a second one ends at once

# EXIT STATUS

0 after a signal or when --check finds nothing wrong, else 1.

# EXAMPLES

What a config comes to on a node, with nothing served:

    gpumeter-device-plugin --check --config-file=config.yaml

# SEE ALSO

gpumeter(1), gpumeter-exporter(1), https://github.com/gpumeter/gpumeter
`,
		"gpumeter": `
# FILES

**/var/lib/gpumeter**
: the ledger of this node, as the exporter keeps it

**/run/gpumeter/health.sock**
: where the exporter tells verdicts and takes an operator's word

# EXIT STATUS

0 where all is well, 1 where something failed, else what the command's help says: a report that is not complete, a ledger that does not add up and a node that
is not ready have codes of their own.

# EXAMPLES

A pretend node on this machine, until Ctrl-C:

    gpumeter demo

Who consumed how much last month:

    gpumeter report --prometheus http://prometheus:9090 --month last --prices prices.yaml

Why a node does not work:

    gpumeter doctor --kubernetes

# SEE ALSO

gpumeter-exporter(1), gpumeter-device-plugin(1), https://github.com/gpumeter/gpumeter
`,
	}
}
