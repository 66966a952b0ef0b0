// SPDX-License-Identifier: Apache-2.0

package hpc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// maxWord is longer than any job's id or account.
const maxWord = 253

// errUnusable says that something is no file of jobs.
var errUnusable = errors.New("is no regular file, or too large")

// readFile reads a regular file of the folder: a pipe there would hang the reader, and behind a link there may be what is nobody's
// business but ours.
func readFile(path string) (_ []byte, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxBytes {
		return nil, fmt.Errorf("%s: %w", path, errUnusable)
	}
	return io.ReadAll(io.LimitReader(file, maxBytes))
}

// ours says that it is no fault of a file that it cannot be read.
func ours(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// parseName reads "0" or "0.7". A GPU has one name: "00" is none.
func parseName(name string) (index, instance int, ok bool) {
	text, rest, divided := strings.Cut(name, ".")
	if index, ok = parseNumber(text); !ok {
		return 0, 0, false
	}
	if !divided {
		return index, gpu.NoInstance, true
	}
	instance, ok = parseNumber(rest)
	return index, instance, ok
}

func parseNumber(text string) (int, bool) {
	if text == "" || len(text) > 4 || len(text) > 1 && text[0] == '0' || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}

// parseJobs reads a file's lines: a job's id, and behind it words such as account=physics. The first of two lines of
// one job counts. bad counts lines that cannot be used.
func parseJobs(data []byte) (jobs []sharing.Job, bad int) {
	seen := map[string]bool{}
	for line := range bytes.Lines(data) {
		words := strings.Fields(string(line))
		if len(words) == 0 {
			continue
		}
		job, ok := parseJob(words)
		if !ok || len(jobs) == maxJobs {
			bad++
			continue
		}
		if !seen[job.ID] {
			seen[job.ID] = true
			jobs = append(jobs, job)
		}
	}
	return jobs, bad
}

func parseJob(words []string) (sharing.Job, bool) {
	job := sharing.Job{ID: words[0], Account: DefaultAccount}
	if !usable(job.ID) {
		return job, false
	}
	for _, w := range words[1:] {
		if account, ok := strings.CutPrefix(w, "account="); ok && account != "" {
			job.Account = account
		}
	}
	return job, usable(job.Account)
}

func usable(word string) bool {
	return len(word) <= maxWord && utf8.ValidString(word) && strings.IndexFunc(word, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

func compareJobs(a, b *sharing.Job) int {
	return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Instance, b.Instance))
}
