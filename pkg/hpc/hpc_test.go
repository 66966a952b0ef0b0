// SPDX-License-Identifier: Apache-2.0

package hpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// folder is a mapping folder with these files.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		write(t, dir, name, text)
	}
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// held says who holds what, a line each.
func held(l sharing.Listing) []string {
	var out []string
	for _, a := range l.Allocations {
		out = append(out, a.Holder.Namespace+"/"+a.Holder.Pod+" "+a.Resource+" "+a.DeviceID)
	}
	return out
}

func TestAJobHoldsTheGPUsThatItIsAloneOn(t *testing.T) {
	for _, tt := range []struct {
		name    string
		files   map[string]string
		want    []string
		skipped map[string]int
	}{
		{"nobody", nil, nil, nil},
		{"a job on two GPUs", map[string]string{"0": "4711\n", "3": "4711"}, []string{"hpc/4711 gres/gpu index0", "hpc/4711 gres/gpu index3"}, nil},
		{"an account", map[string]string{"0": "4711 user=ann account=physics\n"}, []string{"physics/4711 gres/gpu index0"}, nil},
		{"a GPU instance", map[string]string{"0.7": "4711"}, []string{"hpc/4711 gres/gpu index0/gi7"}, nil},
		{"GPUs by number and not by text", map[string]string{"10": "b", "9": "a"}, []string{"hpc/a gres/gpu index9", "hpc/b gres/gpu index10"}, nil},
		{"two jobs on a GPU hold parts that nobody knows", map[string]string{"1": "a\nb\n"}, []string{"hpc/a gres/gpu index1/vgpu0", "hpc/b gres/gpu index1/vgpu1"}, nil},
		{"a job named twice", map[string]string{"1": "17\r\n\n17\n"}, []string{"hpc/17 gres/gpu index1"}, nil},
		{"a file that the epilog has emptied", map[string]string{"1": "\n"}, nil, nil},
		{"other files", map[string]string{"README": "x", "1.": "x", "-1": "x", "1.2.3": "x", "99999": "x", "1": "a"}, []string{"hpc/a gres/gpu index1"}, map[string]int{skippedName: 5}},
		{"a line that is no job", map[string]string{"1": "\xff\n" + strings.Repeat("x", maxWord+1) + "\na\n"}, []string{"hpc/a gres/gpu index1"}, map[string]int{skippedLine: 2}},
		{"a GPU has one name", map[string]string{"0": "a", "00": "a", "1.07": "b"}, []string{"hpc/a gres/gpu index0"}, map[string]int{skippedName: 2}},
		{"a file that is too large", map[string]string{"0": strings.Repeat("1\n", maxBytes), "1": "a"}, []string{"/ gres/gpu index0/vgpu0", "hpc/a gres/gpu index1"}, map[string]int{skippedFile: 1}},
		{"a file with no line that is a job", map[string]string{"0.3": "\xff\n", "1": "a"}, []string{"/ gres/gpu index0/gi3/vgpu0", "hpc/a gres/gpu index1"}, map[string]int{skippedLine: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := Open(folder(t, tt.files), 0, nil)
			got, err := f.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, held(got)); d != "" {
				t.Errorf("held (-want +got):\n%s", d)
			}
			if len(got.Skipped)+len(tt.skipped) > 0 {
				if d := cmp.Diff(tt.skipped, got.Skipped); d != "" {
					t.Errorf("skipped (-want +got):\n%s", d)
				}
			}
			named := slices.DeleteFunc(tt.want, func(line string) bool { return strings.HasPrefix(line, "/ ") })
			if len(f.Jobs()) != len(named) {
				t.Errorf("%d jobs are shown, want %d", len(f.Jobs()), len(named))
			}
		})
	}
}

// Who holds the GPU of such a file is not known. It is not free, and the other GPUs' files say what they say.
func TestAFileThatCannotBeReadCostsItsGPUAlone(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("root:hash\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		make func(path string) error
	}{
		{"a pipe", func(path string) error { return syscall.Mkfifo(path, 0o644) }},
		{"a folder", func(path string) error { return os.Mkdir(path, 0o755) }},
		{"a socket", func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		}},
		{"a link to itself", func(path string) error { return os.Symlink(path, path) }},
		{"a link to what is no file of jobs", func(path string) error { return os.Symlink(secret, path) }},
		{"a file of somebody else", func(path string) error {
			if os.Geteuid() == 0 {
				return errors.New("root may read it")
			}
			return os.WriteFile(path, []byte("b\n"), 0)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := folder(t, map[string]string{"1": "a"})
			if err := tt.make(filepath.Join(dir, "0")); err != nil {
				t.Skip(err)
			}
			f := Open(dir, 0, nil)
			l, err := f.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff([]string{"/ gres/gpu index0/vgpu0", "hpc/a gres/gpu index1"}, held(l)); d != "" || l.Skipped[skippedFile] != 1 {
				t.Errorf("skipped %v, held (-want +got):\n%s", l.Skipped, d)
			}
			if jobs := f.Jobs(); len(jobs) != 1 || jobs[0].ID != "a" {
				t.Errorf("jobs: %v", jobs)
			}
		})
	}
}

func TestAFolderWithTooMuchInItIsAnErrorAndNotAFreeNode(t *testing.T) {
	dir := folder(t, map[string]string{"0": "a"})
	for i := range maxEntries {
		write(t, dir, fmt.Sprintf("core.%d", i), "")
	}
	_, err := Open(dir, 0, nil).List(t.Context())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d entries", maxEntries)) {
		t.Errorf("such a folder gives %v", err)
	}
}

// On a node whose holders the kubelet lists nobody else asks the folder, so nobody else would say that it is gone.
func TestAFolderThatGoesTakesItsJobsAlongAndIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "jobs")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "0", "a")
		var log strings.Builder
		f := Open(dir, time.Second, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		time.Sleep(1500 * time.Millisecond)
		if len(f.Jobs()) != 1 {
			t.Fatalf("jobs: %v", f.Jobs())
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if len(f.Jobs()) != 0 {
			t.Errorf("jobs of a folder that is gone: %v", f.Jobs())
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "0", "b")
		time.Sleep(time.Second)
		if jobs := f.Jobs(); len(jobs) != 1 || jobs[0].ID != "b" {
			t.Errorf("jobs of a folder that is back: %v", jobs)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "no such file") {
			t.Errorf("the log says:\n%s", log.String())
		}
	})
}

func TestAMissingFolderIsAnErrorAndNotAFreeNode(t *testing.T) {
	f := Open(filepath.Join(t.TempDir(), "nowhere"), 0, nil)
	_, err := f.List(t.Context())
	var kind interface{ Kind() string }
	if !errors.As(err, &kind) || kind.Kind() != kindFolder || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a folder that is not there gives %v", err)
	}
}

func TestANewJobIsHeardOfBetweenTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := folder(t, map[string]string{"0": "a"})
		f := Open(dir, time.Second, nil)
		if _, err := f.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		time.Sleep(2500 * time.Millisecond)
		if len(f.Alarms()) != 0 {
			t.Error("there is news where nothing has changed")
		}
		write(t, dir, "1", "b")
		time.Sleep(time.Second)
		if len(f.Alarms()) != 1 {
			t.Error("there is no news of a new job")
		}
		if d := cmp.Diff([]sharing.Job{{GPU: 0, Instance: gpu.NoInstance, ID: "a", Account: "hpc"}, {GPU: 1, Instance: gpu.NoInstance, ID: "b", Account: "hpc"}}, f.Jobs()); d != "" {
			t.Errorf("jobs (-want +got):\n%s", d)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func FuzzParseJobs(f *testing.F) {
	for _, text := range []string{"", "1\n", "1 account=a\r\n\n2\n", "\xff", "a account=", "a account=b account=c"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		jobs, bad := parseJobs(data)
		if lines := strings.Count(string(data), "\n") + 1; len(jobs)+bad > lines {
			t.Fatalf("%d jobs and %d bad lines of %d", len(jobs), bad, lines)
		}
		seen := map[string]bool{}
		for _, j := range jobs {
			if !usable(j.ID) || !usable(j.Account) || j.ID == "" || j.Account == "" || seen[j.ID] {
				t.Fatalf("job %+v is unusable, or there twice", j)
			}
			seen[j.ID] = true
		}
	})
}
