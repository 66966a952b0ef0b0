// SPDX-License-Identifier: Apache-2.0

package hpc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// slurm runs the shipped script as slurmd does, whose prologs and epilogs have no search path.
func slurm(t *testing.T, jobs string, env ...string) {
	t.Helper()
	script, err := filepath.Abs("../../etc/slurm/gpumeter-jobs.sh")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("/bin/bash", script)
	c.Env = append([]string{"JOBS=" + jobs, "MIG_MAP=" + filepath.Join(jobs, "..", "mig.map")}, env...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("the script fails, and with it the node: %v: %s", err, out)
	}
}

func prolog(job, gpus string, more ...string) []string {
	return append([]string{"SLURM_SCRIPT_CONTEXT=prolog_slurmd", "SLURM_JOB_ID=" + job, "SLURM_JOB_GPUS=" + gpus}, more...)
}

func epilog(job string) []string {
	return []string{"SLURM_SCRIPT_CONTEXT=epilog_slurmd", "SLURM_JOB_ID=" + job}
}

func TestTheScriptForSlurmSaysWhichJobHasWhichGPU(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("no flock")
	}
	for _, tt := range []struct {
		name string
		mig  string
		runs [][]string
		want []string
	}{
		{"a job with an account", "", [][]string{prolog("4711", "0,3", "SLURM_JOB_ACCOUNT=physics", "SLURM_JOB_USER=ann")},
			[]string{"physics/4711 gres/gpu index0", "physics/4711 gres/gpu index3"}},
		{"a range", "", [][]string{prolog("4711", "1-2,4")}, []string{"hpc/4711 gres/gpu index1", "hpc/4711 gres/gpu index2", "hpc/4711 gres/gpu index4"}},
		{"a job without a GPU", "", [][]string{prolog("4711", "")}, nil},
		{"two jobs on a GPU", "", [][]string{prolog("1", "0"), prolog("2", "0")}, []string{"hpc/1 gres/gpu index0/vgpu0", "hpc/2 gres/gpu index0/vgpu1"}},
		{"one of two has ended", "", [][]string{prolog("1", "0"), prolog("2", "0"), epilog("1")}, []string{"hpc/2 gres/gpu index0"}},
		{"a job whose number begins another's", "", [][]string{prolog("1", "0"), prolog("12", "1"), epilog("1")}, []string{"hpc/12 gres/gpu index1"}},
		{"all have ended", "", [][]string{prolog("1", "0,1"), epilog("1")}, nil},
		{"a job that was put back and starts again", "", [][]string{prolog("1", "0"), prolog("1", "0")}, []string{"hpc/1 gres/gpu index0"}},
		{"MIG", "0 0.7\n1 0.8\n", [][]string{prolog("1", "0"), prolog("2", "1,2")},
			[]string{"hpc/1 gres/gpu index0/gi7", "hpc/2 gres/gpu index0/gi8", "hpc/2 gres/gpu index2"}},
		{"an account with a blank", "", [][]string{prolog("1", "0", "SLURM_JOB_ACCOUNT=a account=b")}, []string{"a_account=b/1 gres/gpu index0"}},
		{"what is no index", "", [][]string{prolog("1", "../../etc/passwd,0,$(id),99999")}, []string{"hpc/1 gres/gpu index0"}},
		{"no job", "", [][]string{{"SLURM_SCRIPT_CONTEXT=prolog_slurmd", "SLURM_JOB_GPUS=0"}}, nil},
		{"neither prolog nor epilog", "", [][]string{{"SLURM_JOB_ID=1", "SLURM_JOB_GPUS=0"}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "jobs")
			if tt.mig != "" {
				write(t, filepath.Dir(dir), "mig.map", tt.mig)
			}
			for _, env := range tt.runs {
				slurm(t, dir, env...)
			}
			if tt.name == "no job" {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			l, err := Open(dir, 0, nil).List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, held(l)); d != "" {
				t.Errorf("held (-want +got):\n%s", d)
			}
			if len(l.Skipped) > 0 {
				t.Errorf("the script leaves what cannot be read: %v", l.Skipped)
			}
		})
	}
}

func TestJobsOfSlurmThatBeginAtOnceAreAllSeen(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("no flock")
	}
	dir := filepath.Join(t.TempDir(), "jobs")
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() { slurm(t, dir, prolog(fmt.Sprint(100+i), "0")...) })
	}
	all.Wait()
	l, err := Open(dir, 0, nil).List(t.Context())
	if err != nil || len(l.Allocations) != 12 {
		t.Errorf("12 jobs on a GPU are %d: %v, %v", len(l.Allocations), held(l), err)
	}
}

func TestTheScriptForSlurmAsksForTheAccountWhereItIsTold(t *testing.T) {
	if _, err := os.Stat("/usr/local/bin/scontrol"); err == nil {
		t.Skip("there is a Slurm here")
	}
	bin := t.TempDir()
	answer := "#!/bin/sh\necho 'JobId=1 JobName=x UserId=ann(7) Account=chem QOS=normal'\n"
	if err := os.WriteFile(filepath.Join(bin, "scontrol"), []byte(answer), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "jobs")
	slurm(t, dir, prolog("1", "0", "ASK_SLURM=yes", "PATH="+bin)...)
	slurm(t, dir, prolog("2", "1", "PATH="+bin)...)
	l, err := Open(dir, 0, nil).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(held(l), ", "); got != "chem/1 gres/gpu index0, hpc/2 gres/gpu index1" {
		t.Errorf("held: %s", got)
	}
}
