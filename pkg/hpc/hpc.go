// SPDX-License-Identifier: Apache-2.0

// Package hpc reads which job of a batch scheduler has which GPU out of a folder that the scheduler's prolog and epilog
// write, in the form that dcgm-exporter defines: a file for each GPU, named by its index, or by index and GPU instance
// as in 0.7, with a job's id on each line.
package hpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// Resource is what jobs hold GPUs as: Slurm's generic resource.
	Resource = "gres/gpu"
	// DefaultAccount is the namespace of jobs whose line names no account.
	DefaultAccount = "hpc"

	// What is beyond could only be a mistake or malice.
	maxFiles    = 4096
	maxBytes    = 64 << 10
	maxJobs     = 256
	kindFolder  = "folder"
	kindFile    = "file"
	skippedFile = "unusable_file"
	skippedName = "unusable_name"
	skippedLine = "unusable_line"
)

// Folder is the mapping folder. Its methods are safe for concurrent use; Run may be called once.
type Folder struct {
	path  string
	every time.Duration
	alarm chan struct{}

	mu sync.Mutex
	// last is what the folder said when it was last read, and listed what the last listing was made of.
	last, listed []sharing.Job
}

// Open names a folder, which may come and go, and is looked at each time that every passes once it Runs; 0 is a second.
func Open(path string, every time.Duration) *Folder {
	return &Folder{path: path, every: cmp.Or(every, time.Second), alarm: make(chan struct{}, 1)}
}

// folderError says that the folder, or a file in it, could not be read.
type folderError struct {
	kind string
	err  error
}

func (e *folderError) Error() string {
	return fmt.Sprintf("read the jobs' GPUs: %v; see --hpc-job-mapping-dir", e.err)
}
func (e *folderError) Unwrap() error { return e.err }

// Kind is the word that the error is counted under.
func (e *folderError) Kind() string { return e.kind }

// Kinds are the words that errors of List are counted under.
func (f *Folder) Kinds() []string { return []string{kindFolder, kindFile} }

// Alarms gets something when the folder says something else than the last listing did. The channel has room for one, is
// the same at each call, and is never closed.
func (f *Folder) Alarms() <-chan struct{} { return f.alarm }

// Jobs are those of the last reading, by GPU and instance. The result must not be modified.
func (f *Folder) Jobs() []sharing.Job {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// List reads the folder: each job holds the GPU that it is alone on. Of a GPU with several jobs nobody knows who has how
// much; they hold replicas of it of which nobody knows the number.
func (f *Folder) List(ctx context.Context) (sharing.Listing, error) {
	if err := ctx.Err(); err != nil {
		return sharing.Listing{}, err
	}
	jobs, skipped, err := f.read()
	if err != nil {
		return sharing.Listing{}, err
	}
	f.mu.Lock()
	f.last, f.listed = jobs, jobs
	f.mu.Unlock()
	out := sharing.Listing{Time: time.Now(), Skipped: skipped}
	pods := make(map[sharing.Holder]bool, len(jobs))
	for i := 0; i < len(jobs); {
		n := 1
		for i+n < len(jobs) && jobs[i+n].GPU == jobs[i].GPU && jobs[i+n].Instance == jobs[i].Instance {
			n++
		}
		for k, j := range jobs[i : i+n] {
			id := sharing.IndexID(j.GPU, j.Instance)
			if n > 1 {
				id = id.WithReplica(k)
			}
			holder := sharing.Holder{Namespace: j.Account, Pod: j.ID, PodUID: j.ID}
			pods[holder] = true
			out.Allocations = append(out.Allocations, sharing.Allocation{Holder: holder, Resource: Resource, DeviceID: id.String()})
		}
		i += n
	}
	out.Pods, out.Containers = len(pods), len(out.Allocations)
	return out, nil
}

// Run looks at the folder until ctx ends, which is nil.
func (f *Folder) Run(ctx context.Context) error {
	f.look()
	ticker := time.NewTicker(f.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			f.look()
		}
	}
}

func (f *Folder) look() {
	jobs, _, err := f.read()
	if err != nil {
		return // the next listing says so
	}
	f.mu.Lock()
	f.last = jobs
	news := !slices.Equal(jobs, f.listed)
	f.mu.Unlock()
	if news {
		select {
		case f.alarm <- struct{}{}:
		default:
		}
	}
}

// read is what all files say, by GPU and instance, and how many could not be used, by why. A file that goes while it is
// read is as one that was never there; one that cannot be read is an error, since its GPU is no more free than known.
func (f *Folder) read() ([]sharing.Job, map[string]int, error) {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return nil, nil, &folderError{kindFolder, err}
	}
	skipped := map[string]int{}
	if len(entries) > maxFiles {
		skipped[skippedName] += len(entries) - maxFiles
		entries = entries[:maxFiles]
	}
	var jobs []sharing.Job
	for _, e := range entries {
		index, instance, ok := parseName(e.Name())
		if !ok {
			skipped[skippedName]++
			continue
		}
		data, err := readFile(filepath.Join(f.path, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case errors.Is(err, errUnusable):
			skipped[skippedFile]++
			continue
		case err != nil:
			return nil, nil, &folderError{kindFile, err}
		}
		found, bad := parseJobs(data)
		if bad > 0 {
			skipped[skippedLine] += bad
		}
		for _, j := range found {
			j.GPU, j.Instance = index, instance
			jobs = append(jobs, j)
		}
	}
	slices.SortStableFunc(jobs, func(a, b sharing.Job) int { return compareJobs(&a, &b) })
	return jobs, skipped, nil
}
