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
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/sharing"
)

const (
	// DefaultAccount is the namespace of jobs whose line names no account.
	DefaultAccount = "hpc"

	// What is beyond could only be a mistake or malice.
	maxEntries  = 4096
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
	log   *slog.Logger
	alarm chan struct{}

	mu sync.Mutex
	// last are the jobs when the folder was last read, none where it could not be, and listed is what the last listing was made of.
	last, listed []sharing.Job
}

// Open names a folder, which may come and go, and is looked at each time that every passes once it Runs; 0 is a second. log
// is told when it cannot be read, for those who call no List, which says so itself; nil is silent.
func Open(path string, every time.Duration, log *slog.Logger) *Folder {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Folder{path: path, every: cmp.Or(every, time.Second), log: log, alarm: make(chan struct{}, 1)}
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

// Jobs are those of the last reading, by GPU and instance; none where the folder could not be read. The result must not be modified.
func (f *Folder) Jobs() []sharing.Job {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// List reads the folder: each job holds the GPU that it is alone on. Of a GPU with several jobs nobody knows who has how
// much; they hold replicas of it of which nobody knows the number. So does somebody without a name where the GPU's file cannot be read.
func (f *Folder) List(ctx context.Context) (sharing.Listing, error) {
	if err := ctx.Err(); err != nil {
		return sharing.Listing{}, err
	}
	jobs, skipped, err := f.read()
	if err != nil {
		return sharing.Listing{}, err
	}
	f.mu.Lock()
	f.last, f.listed = named(jobs), jobs
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
			if n > 1 || j.ID == "" {
				id = id.WithReplica(k)
			}
			holder := sharing.Holder{Namespace: j.Account, Pod: j.ID, PodUID: j.ID}
			pods[holder] = true
			out.Allocations = append(out.Allocations, sharing.Allocation{Holder: holder, Resource: sharing.JobResource, DeviceID: id.String()})
		}
		i += n
	}
	out.Pods, out.Containers = len(pods), len(out.Allocations)
	return out, nil
}

// named are the jobs among what was read.
func named(read []sharing.Job) []sharing.Job {
	return slices.DeleteFunc(slices.Clone(read), func(j sharing.Job) bool { return j.ID == "" })
}

// Run looks at the folder until ctx ends, which is nil.
func (f *Folder) Run(ctx context.Context) error {
	said := f.look("")
	ticker := time.NewTicker(f.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			said = f.look(said)
		}
	}
}

// look reads the folder. said is the trouble that was told last, and look returns what is now.
func (f *Folder) look(said string) string {
	jobs, _, err := f.read()
	f.mu.Lock()
	f.last = named(jobs)
	news := err == nil && !slices.Equal(jobs, f.listed)
	f.mu.Unlock()
	if news {
		select {
		case f.alarm <- struct{}{}:
		default:
		}
	}
	switch {
	case err != nil && err.Error() != said:
		f.log.Warn("which job has which GPU is not known", "error", err)
	case err == nil && said != "":
		f.log.Info("the folder of jobs can be read again", "folder", f.path)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// read is what all files say, by GPU and instance, and how much could not be used, by why. A job without an id stands for whoever has a
// GPU whose file says nothing that can be read: the GPU is no more free than known. A file that goes while it is read is as
// one that was never there.
func (f *Folder) read() ([]sharing.Job, map[string]int, error) {
	names, err := f.names()
	if err != nil {
		return nil, nil, &folderError{kindFolder, err}
	}
	skipped := map[string]int{}
	var jobs []sharing.Job
	for _, name := range names {
		index, instance, ok := parseName(name)
		if !ok {
			skipped[skippedName]++
			continue
		}
		data, err := readFile(filepath.Join(f.path, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case ours(err):
			return nil, nil, &folderError{kindFile, err}
		case err != nil:
			skipped[skippedFile]++
			jobs = append(jobs, sharing.Job{GPU: index, Instance: instance})
			continue
		}
		found, bad := parseJobs(data)
		if bad > 0 {
			skipped[skippedLine] += bad
			if len(found) == 0 {
				found = []sharing.Job{{}}
			}
		}
		for _, j := range found {
			j.GPU, j.Instance = index, instance
			jobs = append(jobs, j)
		}
	}
	slices.SortStableFunc(jobs, func(a, b sharing.Job) int { return compareJobs(&a, &b) })
	return jobs, skipped, nil
}

// names are those in the folder. One with more entries than a node could have GPUs is not read to its end each second.
func (f *Folder) names() (_ []string, err error) {
	folder, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	names, err := folder.Readdirnames(maxEntries + 1)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case len(names) > maxEntries:
		return nil, fmt.Errorf("%s has more than %d entries", f.path, maxEntries)
	}
	return names, nil
}
