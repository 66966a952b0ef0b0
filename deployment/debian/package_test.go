// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const repository = "../.."

// programsDir has programs to package: those of GPUMETER_PROGRAMS, or scripts that answer as ours do.
func programsDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("GPUMETER_PROGRAMS"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	for _, program := range programs() {
		text := "#!/bin/sh\necho \"$0 $*\" | sed 's,.*/,,'\n"
		if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// pack makes a package and returns its file.
func pack(t *testing.T, format, dir string) string {
	t.Helper()
	licences := t.TempDir()
	if err := os.WriteFile(filepath.Join(licences, "LICENSE"), []byte("free"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run(t.Context(), []string{
		"-format", format, "-programs", dir, "-host", dir, "-root", repository, "-licences", licences,
		"-version", "v1.2.3-rc.1", "-created", "1700000000", "-out", t.TempDir(),
	}, &out)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

func needs(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
}

// say runs a tool and returns what it says, with lines to look for.
func say(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

func TestVersionsAreOrderedAsTheyWereMeant(t *testing.T) {
	needs(t, "dpkg")
	described := []string{"8bc79e4-dirty", "v0.9.0-rc.1", "v0.9.0-rc.2", "v0.9.0", "v0.9.0-dirty", "v0.9.0-5-gabcdef0", "v0.9.0-12-gabcdef0-dirty", "v0.10.0-rc.1", "v0.10.0"}
	for i := range described[1:] {
		a, b := packageVersion(described[i]), packageVersion(described[i+1])
		// Changes that are in no commit are told by no order.
		if described[i+1] == "v0.9.0-5-gabcdef0" {
			continue
		}
		say(t, "dpkg", "--compare-versions", a, "lt", b)
	}
	for version, want := range map[string]string{"v0.9.0": "0.9.0", "v0.9.0-rc.1": "0.9.0~rc.1", "v0.9.0-5-gabc": "0.9.0+5.gabc", "unknown": "0.0.0~unknown", "a b/c": "0.0.0~a.b.c"} {
		if got := packageVersion(version); got != want {
			t.Errorf("%q is packaged as %q, want %q", version, got, want)
		}
	}
}

// packaged are the files that both formats have.
func packaged() []string {
	return []string{
		"/usr/bin/gpumeter", "/usr/bin/gpumeter-exporter", "/usr/bin/gpumeter-device-plugin",
		"/usr/lib/systemd/system/gpumeter-exporter.service", "/usr/lib/tmpfiles.d/gpumeter.conf", "/etc/default/gpumeter-exporter",
		"/etc/gpumeter/default-counters.csv", "/etc/gpumeter/dcp-metrics-included.csv", "/etc/gpumeter/1.x-compatibility-metrics.csv",
		"/usr/share/man/man1/gpumeter.1.gz", "/usr/share/man/man1/gpumeter-exporter.1.gz", "/usr/share/man/man1/gpumeter-device-plugin.1.gz",
		"/usr/share/bash-completion/completions/gpumeter", "/usr/share/fish/vendor_completions.d/gpumeter-exporter.fish",
		docs + "/copyright", docs + "/changelog.gz", docs + "/licenses/LICENSE", examples + "/slurm/gpumeter-jobs.sh",
		examples + "/systemd/profiling.conf", examples + "/prometheus/alerts.yaml", examples + "/prometheus/rules.yaml", examples + "/prices.example.yaml",
	}
}

func TestADebianPackageHasWhatANodeNeeds(t *testing.T) {
	needs(t, "dpkg-deb")
	file := pack(t, "deb", programsDir(t))
	if got := filepath.Base(file); got != "gpumeter_1.2.3~rc.1-1_amd64.deb" {
		t.Errorf("the package is called %s", got)
	}
	listed := say(t, "dpkg-deb", "-c", file)
	for _, name := range append(packaged(), docs+"/changelog.Debian.gz", "/usr/share/zsh/vendor-completions/_gpumeter") {
		if !strings.Contains(listed, " ."+name+"\n") {
			t.Errorf("it lacks %s", name)
		}
	}
	if strings.Contains(listed, "_test.yaml") {
		t.Error("it has tests")
	}
	for line := range strings.Lines(listed) {
		if !strings.Contains(line, " root/root ") || strings.HasPrefix(line, "-rwsr") || strings.Contains(line[:10], "w-r") && line[5] == 'w' {
			t.Errorf("not root's, or with too many rights: %s", line)
		}
	}
	conffiles := strings.Fields(say(t, "dpkg-deb", "-I", file, "conffiles"))
	want := []string{"/etc/default/gpumeter-exporter", "/etc/gpumeter/1.x-compatibility-metrics.csv", "/etc/gpumeter/dcp-metrics-included.csv", "/etc/gpumeter/default-counters.csv"}
	if slices.Sort(conffiles); !slices.Equal(conffiles, want) {
		t.Errorf("an upgrade keeps changes in %v, want %v", conffiles, want)
	}
	control := say(t, "dpkg-deb", "-f", file)
	for _, want := range []string{"Version: 1.2.3~rc.1-1\n", "Architecture: amd64\n", "Depends: libc6 (>= 2.31), passwd\n"} {
		if !strings.Contains(control, want) {
			t.Errorf("control lacks %q:\n%s", want, control)
		}
	}
}

func TestAnRPMHasTheSame(t *testing.T) {
	needs(t, "rpm")
	file := pack(t, "rpm", programsDir(t))
	listed := "\n" + say(t, "rpm", "-qpl", file)
	for _, name := range append(packaged(), "/usr/share/zsh/site-functions/_gpumeter") {
		if !strings.Contains(listed, "\n"+name+"\n") {
			t.Errorf("it lacks %s", name)
		}
	}
	if got := say(t, "rpm", "-qp", "--qf", "%{VERSION}-%{RELEASE} %{ARCH}", file); got != "1.2.3~rc.1-1 x86_64" {
		t.Errorf("it is %s", got)
	}
	if got := say(t, "rpm", "-qpc", file); strings.Count(got, "\n") != 4 {
		t.Errorf("configuration is\n%s", got)
	}
}

func TestTheSameSourcesGiveTheSameBytes(t *testing.T) {
	dir := programsDir(t)
	for _, format := range []string{"deb", "rpm"} {
		first, err := os.ReadFile(pack(t, format, dir))
		if err != nil {
			t.Fatal(err)
		}
		second, err := os.ReadFile(pack(t, format, dir))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Errorf("two packages of format %s differ", format)
		}
	}
}

func TestAProgramThatIsNotThereMakesNoPackage(t *testing.T) {
	out := t.TempDir()
	for _, args := range [][]string{{"-format", "deb", "-programs", t.TempDir(), "-host", programsDir(t)}, {"-format", "msi"}, {"-programs", programsDir(t), "-host", t.TempDir()}} {
		if err := run(t.Context(), append(args, "-root", repository, "-out", out), io.Discard); err == nil {
			t.Errorf("%v makes a package", args)
		}
	}
	if left, err := os.ReadDir(out); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// installed is what happens to a package on this machine, whose files are only overlaid.
const installed = `set -eu
m=$1; mount -t tmpfs tmpfs "$m"; mkdir "$m/up" "$m/work" "$m/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$m/up,workdir=$m/work" "$m/root" || exit 77
cp "$2" "$m/package.deb"
mount -t tmpfs tmpfs "$m/root/run"; mount -t tmpfs tmpfs "$m/root/tmp"; mount --rbind /dev "$m/root/dev"; mount -t proc proc "$m/root/proc"
cp "$m/package.deb" "$m/root/tmp/"
rm -rf "$m/root/var/lib/gpumeter"
exec chroot "$m/root" /bin/sh -euc '
dpkg --no-triggers -i /tmp/package.deb
echo "user: $(getent passwd gpumeter)"
echo "jobs: $(stat -c "%a %U" /run/gpumeter-jobs)"
echo "enabled: $(readlink /etc/systemd/system/multi-user.target.wants/gpumeter-exporter.service)"
gpumeter --version
echo "# mine" >> /etc/gpumeter/default-counters.csv
dpkg --no-triggers -i /tmp/package.deb
tail -n 1 /etc/gpumeter/default-counters.csv
mkdir -p /var/lib/gpumeter/book
dpkg --no-triggers -r gpumeter
echo "removed: $(ls /usr/bin/gpumeter* 2> /dev/null || true; ls /etc/gpumeter | wc -l)"
dpkg --no-triggers -P gpumeter
echo "purged: $(ls -d /etc/gpumeter /etc/default/gpumeter-exporter /var/lib/gpumeter 2> /dev/null) $(getent passwd gpumeter | cut -d: -f1)"
rm -rf /var/lib/gpumeter/book
dpkg --no-triggers -i /tmp/package.deb
dpkg --no-triggers -P gpumeter
echo "empty: $(ls -d /var/lib/gpumeter 2> /dev/null) $(getent passwd gpumeter | cut -d: -f1)"
' 2>&1`

func TestAPackageIsInstalledUpgradedRemovedAndPurged(t *testing.T) {
	needs(t, "dpkg", "unshare", "systemd-tmpfiles", "deb-systemd-helper")
	if os.Getuid() != 0 {
		t.Skip("only root can install packages")
	}
	file := pack(t, "deb", programsDir(t))
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", installed, "sh", t.TempDir(), file).CombinedOutput()
	said := string(out)
	if err != nil && (strings.Contains(said, "Operation not permitted") || strings.Contains(said, "overlay")) {
		t.Skipf("no overlay can be mounted here: %s", said)
	}
	if err != nil {
		t.Fatalf("%v:\n%s", err, said)
	}
	for _, want := range []string{
		"user: gpumeter:", ":/var/lib/gpumeter:/usr/sbin/nologin", "jobs: 755 root\n", "enabled: /", "\n# mine\n",
		"removed: 3\n", "the ledger in /var/lib/gpumeter is kept", "purged: /var/lib/gpumeter gpumeter\n", "empty:  \n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if t.Failed() {
		t.Log(said)
	}
}

func TestScriptsAreShellThatAnyShellReads(t *testing.T) {
	scripts, err := filepath.Glob("scripts/*/*")
	if err != nil || len(scripts) != 6 {
		t.Fatalf("%d scripts: %v", len(scripts), err)
	}
	for _, script := range scripts {
		say(t, cmp.Or(os.Getenv("SH"), "sh"), "-n", script)
		if text, err := os.ReadFile(script); err != nil || !strings.HasPrefix(string(text), "#!/bin/sh\n") {
			t.Error(fmt.Errorf("%s is no script: %w", script, err))
		}
	}
}
