// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Program is the control program, which is the daemon too.
const Program = "nvidia-cuda-mps-control"

// FindIn looks for a program in folders, in their order. The error names the folders.
func FindIn(program string, folders ...string) (string, error) {
	for _, folder := range folders {
		path := filepath.Join(folder, program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s in %s: %w", program, strings.Join(folders, ", "), fs.ErrNotExist)
}

// control speaks with the daemon of a place through the control program, which reads commands
// from its standard input.
type control struct {
	find    func() (string, error)
	environ []string
	place   place
	// answer is how long one command may take.
	answer time.Duration
}

// The commands in use.
const (
	cmdPercent    = "get_default_active_thread_percentage"
	cmdSetPercent = "set_default_active_thread_percentage"
	cmdSetMemory  = "set_default_device_pinned_mem_limit"
	cmdServers    = "get_server_list"
	// The two for a server that runs already, which keeps the defaults that it was started with.
	cmdServerPercent = "set_active_thread_percentage"
	cmdServerMemory  = "set_device_pinned_mem_limit"
	cmdQuit          = "quit"
)

// errHangs says that there is a daemon which does not answer.
var errHangs = errors.New("no answer in time")

// tell is what the daemon answers to a command.
func (c *control) tell(ctx context.Context, words ...string) (string, error) {
	command := strings.Join(words, " ")
	path, err := c.find()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, c.answer)
	defer cancel()
	run := exec.CommandContext(ctx, path)
	run.Env = append(slices.Clone(c.environ), "CUDA_MPS_PIPE_DIRECTORY="+c.place.pipe(), "CUDA_MPS_LOG_DIRECTORY="+c.place.log())
	run.Stdin = strings.NewReader(command + "\n")
	out := &tail{}
	run.Stdout, run.Stderr = out, out
	run.WaitDelay = time.Second
	err = run.Run()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", fmt.Errorf("%s: %w", command, errHangs)
	case err != nil:
		return "", fmt.Errorf("%s: %w%s", command, err, out.said())
	}
	return out.String(), nil
}

// percent is the default percentage. Only a daemon that lives answers with a number.
func (c *control) percent(ctx context.Context) (float64, error) {
	answer, err := c.tell(ctx, cmdPercent)
	if err != nil {
		return 0, err
	}
	percent, err := strconv.ParseFloat(strings.TrimSpace(answer), 64)
	if err != nil {
		return 0, fmt.Errorf("%s: the answer %q is no percentage", cmdPercent, answer)
	}
	return percent, nil
}

// alive is why the daemon cannot be used, nil if it can.
func (c *control) alive(ctx context.Context) error {
	_, err := c.percent(ctx)
	return err
}

// limit tells the daemon and the servers that it has started what clients may use.
func (c *control) limit(ctx context.Context, d Daemon) error {
	var problems []error
	tell := func(words ...string) string {
		answer, err := c.tell(ctx, words...)
		if err != nil {
			problems = append(problems, err)
		}
		return answer
	}
	percent := strconv.Itoa(d.ThreadPercent)
	for i, device := range d.Devices {
		if device.MemoryMiB > 0 {
			tell(cmdSetMemory, strconv.Itoa(i), megabytes(device))
		}
	}
	tell(cmdSetPercent, percent)
	for server := range strings.FieldsSeq(tell(cmdServers)) {
		if _, err := strconv.ParseUint(server, 10, 32); err != nil {
			continue
		}
		for i, device := range d.Devices {
			if device.MemoryMiB > 0 {
				tell(cmdServerMemory, server, strconv.Itoa(i), megabytes(device))
			}
		}
		tell(cmdServerPercent, server, percent)
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	if now, err := c.percent(ctx); err != nil || int(now) != d.ThreadPercent {
		return errors.Join(err, fmt.Errorf("the default percentage is %v and should be %d", now, d.ThreadPercent))
	}
	return nil
}

// megabytes is a limit as MPS reads it, whose M is a MiB.
func megabytes(d Device) string { return strconv.FormatUint(d.MemoryMiB, 10) + "M" }

// child is a daemon that was started here.
type child struct {
	cmd *exec.Cmd
	// ended closes when the process has; err is how, to be read after that.
	ended chan struct{}
	err   error
}

// launch starts a daemon in a process group of its own: a signal for this program must not end it
// before it is told to quit, and its servers have to go with it.
func (c *control) launch(devices []string) (*child, error) {
	path, err := c.find()
	if err != nil {
		return nil, err
	}
	out := &tail{}
	cmd := exec.Command(path, "-f") //nolint:noctx // it is told to quit, and killed only if that does not help
	cmd.Env = append(slices.Clone(c.environ),
		"CUDA_VISIBLE_DEVICES="+strings.Join(devices, ","),
		"CUDA_MPS_PIPE_DIRECTORY="+c.place.pipe(), "CUDA_MPS_LOG_DIRECTORY="+c.place.log())
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Its servers may hold its output open for longer than it lives.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	started := &child{cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(started.ended)
		err := cmd.Wait()
		if err == nil || errors.Is(err, exec.ErrWaitDelay) {
			err = errors.New(cmd.ProcessState.String())
		}
		started.err = fmt.Errorf("%w%s", err, out.said())
	}()
	return started, nil
}

// kill ends the daemon and what is left of its servers.
func (c *child) kill() {
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	<-c.ended
}

// tail keeps the end of what a program says. It is written to by one goroutine, and read after that.
type tail struct{ kept []byte }

const (
	tailBytes = 4096
	saidBytes = 256
)

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if extra := len(t.kept) - tailBytes; extra > 0 {
		t.kept = append([]byte(nil), t.kept[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.ToValidUTF8(string(t.kept), "?") }

// said is the end of it as a part of an error.
func (t *tail) said() string {
	text := strings.Join(strings.Fields(t.String()), " ")
	if text == "" {
		return ""
	}
	if extra := len(text) - saidBytes; extra > 0 {
		text = "…" + strings.ToValidUTF8(text[extra:], "")
	}
	return " (it said: " + text + ")"
}
