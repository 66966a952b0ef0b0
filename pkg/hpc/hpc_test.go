// SPDX-License-Identifier: Apache-2.0

package hpc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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
		{"a job named twice", map[string]string{"1": "a\r\n\na\n"}, []string{"hpc/a gres/gpu index1"}, nil},
		{"a file that the epilog has emptied", map[string]string{"1": "\n"}, nil, nil},
		{"other files", map[string]string{"README": "x", "1.": "x", "-1": "x", "1.2.3": "x", "99999": "x", "1": "a"}, []string{"hpc/a gres/gpu index1"}, map[string]int{skippedName: 5}},
		{"a line that is no job", map[string]string{"1": "\xff\n" + strings.Repeat("x", maxWord+1) + "\na\n"}, []string{"hpc/a gres/gpu index1"}, map[string]int{skippedLine: 2}},
		{"a file that is too large", map[string]string{"0": strings.Repeat("1\n", maxBytes), "1": "a"}, []string{"hpc/a gres/gpu index1"}, map[string]int{skippedFile: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := Open(folder(t, tt.files), 0)
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
			if len(f.Jobs()) != len(tt.want) {
				t.Errorf("%d jobs are shown, want %d", len(f.Jobs()), len(tt.want))
			}
		})
	}
}

func TestAPipeInTheFolderHangsNobody(t *testing.T) {
	dir := folder(t, map[string]string{"1": "a"})
	if err := syscall.Mkfifo(filepath.Join(dir, "0"), 0o644); err != nil {
		t.Skip(err)
	}
	l, err := Open(dir, 0).List(t.Context())
	if err != nil || len(l.Allocations) != 1 || l.Skipped[skippedFile] != 1 {
		t.Errorf("with a pipe: %v, %v", l, err)
	}
}

func TestAMissingFolderIsAnErrorAndNotAFreeNode(t *testing.T) {
	f := Open(filepath.Join(t.TempDir(), "nowhere"), 0)
	_, err := f.List(t.Context())
	var kind interface{ Kind() string }
	if !errors.As(err, &kind) || kind.Kind() != kindFolder || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("a folder that is not there gives %v", err)
	}
}

func TestANewJobIsHeardOfBetweenTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := folder(t, map[string]string{"0": "a"})
		f := Open(dir, time.Second)
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
