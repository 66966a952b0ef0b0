// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// keeper keeps one daemon alive. Its place and its GPUs are fixed; its limits can change.
type keeper struct {
	cfg     *Config
	control *control
	place   place
	log     *slog.Logger
	// changed is called after each change of the state.
	changed func()
	// poked has room for one: the limits have changed.
	poked chan struct{}

	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	daemon Daemon
	state  state
}

// state is what is known of a daemon.
type state struct {
	// settled says that it has answered or failed: before, nobody can tell.
	settled bool
	// down is why it cannot be used, empty if it can.
	down string
	// limits is why it does not have its limits; modes, why GPUs are not in their mode.
	limits string
	modes  map[gpu.UUID]string
}

func newKeeper(cfg *Config, root string, d Daemon, changed func()) *keeper {
	at := place{root, d.Resource}
	return &keeper{
		cfg: cfg, place: at, log: cfg.Log.With("resource", d.Resource), changed: changed, daemon: d,
		control: &control{find: cfg.Find, environ: cfg.Environ, place: at, answer: cfg.pace.answer},
		poked:   make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// want takes other limits for the same GPUs.
func (k *keeper) want(d Daemon) {
	k.mu.Lock()
	k.daemon = d
	k.mu.Unlock()
	select {
	case k.poked <- struct{}{}:
	default:
	}
}

func (k *keeper) now() (Daemon, state) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.daemon, k.state
}

// note publishes another state.
func (k *keeper) note(with func(*state)) {
	k.mu.Lock()
	with(&k.state)
	k.mu.Unlock()
	k.changed()
}

// start has the daemon kept until stop.
func (k *keeper) start(parent context.Context) {
	ctx, cancel := context.WithCancel(parent)
	k.cancel = cancel
	go func() {
		defer close(k.done)
		k.run(ctx)
	}()
}

// stop returns when the daemon is gone.
func (k *keeper) stop() {
	k.cancel()
	<-k.done
}

func (k *keeper) run(ctx context.Context) {
	p := k.cfg.pace
	most := p.againMost
	if k.cfg.External {
		most = p.ask
	}
	for pause := min(p.again, most); ; pause = min(2*pause, most) {
		began := time.Now()
		err := k.live(ctx)
		if ctx.Err() != nil {
			return
		}
		if _, was := k.now(); was.down != err.Error() {
			k.log.Error("the MPS control daemon is down; nobody new gets its GPUs before it answers", "error", err)
		}
		k.note(func(s *state) { s.settled, s.down = true, err.Error() })
		if time.Since(began) >= p.stands {
			pause = min(p.again, most)
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// live is one life of the daemon. The error is why it is over, or why there was none.
func (k *keeper) live(ctx context.Context) error {
	if k.cfg.External {
		if err := k.alive(ctx); err != nil {
			return fmt.Errorf("it is not there: %w; look at the pod that runs it", err)
		}
		k.up()
		return k.watch(ctx, nil, false)
	}
	if _, err := k.cfg.Find(); err != nil {
		return err
	}
	if err := k.makeFolders(); err != nil {
		return err
	}
	k.setModes(ctx)
	found, err := k.takeOver(ctx)
	switch {
	case err != nil || ctx.Err() != nil:
		return err
	case found != nobody:
		if found == ours {
			defer func() {
				if err := k.quitAnswering(ctx); err != nil {
					k.log.Warn("the MPS control daemon of before goes on", "error", err)
				}
			}()
		}
		k.limit(ctx, found == ours)
		k.up()
		return k.watch(ctx, nil, found == ours)
	}
	return k.ownLife(ctx)
}

// ownLife starts the daemon and ends it.
func (k *keeper) ownLife(ctx context.Context) error {
	d, _ := k.now()
	devices := uuidList(d)
	c, err := k.control.launch(strings.Split(devices, ","))
	if err != nil {
		return err
	}
	defer c.kill()
	// What is asked of a dead daemon need not be waited for.
	life, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-c.ended
		cancel()
	}()
	if err := os.WriteFile(k.place.record(), []byte(devices+"\n"), 0o644); err != nil {
		k.log.Warn("the daemon will not be known again after a crash of this program", "error", err)
	}
	if err = k.firstAnswer(life, c); err == nil {
		k.log.Info("the MPS control daemon runs", "pid", c.cmd.Process.Pid, "gpus", devices)
		k.limit(life, true)
		k.up()
		err = k.watch(life, c, true)
	}
	if ctx.Err() != nil {
		k.quit(ctx, c)
		return nil
	}
	return err
}

// up notes that containers can use the daemon.
func (k *keeper) up() {
	if _, was := k.now(); was.down != "" {
		k.log.Info("the MPS control daemon answers again")
	}
	k.note(func(s *state) { s.settled, s.down = true, "" })
}

// firstAnswer waits until the daemon answers.
func (k *keeper) firstAnswer(life context.Context, c *child) error {
	p := k.cfg.pace
	limit := time.Now().Add(p.start)
	for {
		err := k.control.alive(life)
		switch {
		case err == nil:
			return nil
		case over(c):
			return fmt.Errorf("it ended at its start: %w; its log is in %s", c.err, k.place.log())
		case life.Err() != nil:
			return life.Err()
		case time.Now().After(limit):
			return fmt.Errorf("it was started and does not answer: %w; its log is in %s", err, k.place.log())
		}
		sleep(life, p.start/100)
	}
}

// watch looks after a daemon that answers, until ctx ends or the error says why it is down. c is
// nil for one that was not started here. It is told its limits if it takes them from here.
func (k *keeper) watch(ctx context.Context, c *child, limits bool) error {
	tick := time.NewTicker(k.cfg.pace.ask)
	defer tick.Stop()
	for missed := 0; ; {
		select {
		case <-ctx.Done():
		case <-k.poked:
			k.limit(ctx, limits)
			continue
		case <-tick.C:
		}
		if over(c) {
			return fmt.Errorf("it ended: %w; its log is in %s", c.err, k.place.log())
		}
		err := k.alive(ctx)
		switch {
		case ctx.Err() != nil && !over(c):
			return nil
		case err == nil:
			missed = 0
			if _, s := k.now(); s.limits != "" {
				k.limit(ctx, limits)
			}
			continue
		case c == nil && !errors.Is(err, errHangs):
			return fmt.Errorf("it is gone: %w", err)
		}
		if missed++; missed >= k.cfg.pace.misses {
			return fmt.Errorf("it hangs: %d questions in a row: %w", missed, err)
		}
	}
}

// alive is why the daemon cannot be used, nil if it can. Where the control program of somebody
// else's daemon is not at hand, its socket has to do.
func (k *keeper) alive(ctx context.Context) error {
	err := k.control.alive(ctx)
	if !k.cfg.External || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = os.Stat(filepath.Join(k.place.pipe(), "control"))
	return err
}

// limit tells the daemon its limits, if it takes them from here.
func (k *keeper) limit(ctx context.Context, takes bool) {
	if !takes {
		return
	}
	d, was := k.now()
	text := ""
	if err := k.control.limit(ctx, d); err != nil && ctx.Err() == nil {
		text = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if text != "" && text != was.limits {
		k.log.Warn("the MPS control daemon did not take its limits", "error", text)
	}
	k.note(func(s *state) { s.limits = text })
}

// setModes makes the GPUs usable through the daemon only.
func (k *keeper) setModes(ctx context.Context) {
	if k.cfg.SetExclusive == nil {
		return
	}
	d, was := k.now()
	modes := make(map[gpu.UUID]string)
	for _, device := range d.Devices {
		err := k.cfg.SetExclusive(ctx, device.UUID, true)
		if err == nil || ctx.Err() != nil {
			continue
		}
		modes[device.UUID] = err.Error()
		if was.modes[device.UUID] != err.Error() {
			k.log.Warn("a GPU shared by MPS could not be set to EXCLUSIVE_PROCESS", "gpu", device.UUID, "error", err)
		}
	}
	k.note(func(s *state) { s.modes = modes })
}

func (k *keeper) makeFolders() error {
	for _, folder := range []string{k.place.pipe(), k.place.log()} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return fmt.Errorf("its folder: %w; mount the folder of MPS for writing", err)
		}
	}
	shm := k.place.shm()
	if err := os.MkdirAll(shm, 0o777); err != nil {
		return fmt.Errorf("the shared memory of MPS: %w", err)
	}
	// The kubelet makes a hostPath that is missing for root alone, and clients are not root.
	if err := os.Chmod(shm, 0o777|os.ModeSticky); err != nil {
		return fmt.Errorf("the shared memory of MPS: %w", err)
	}
	k.compareShm(shm)
	return nil
}

// compareShm warns of a daemon that its clients would not share memory with.
func (k *keeper) compareShm(shm string) {
	theirs, err := os.Stat(shm)
	if err != nil {
		return
	}
	if own, err := os.Stat("/dev/shm"); err != nil || !os.SameFile(own, theirs) {
		k.log.Warn("containers get another /dev/shm than the MPS control daemon has, and may fail at their first CUDA call: mount the one on the other",
			"daemon", "/dev/shm", "containers", shm)
	}
}

func uuidList(d Daemon) string {
	var words []string
	for _, u := range d.uuids() {
		words = append(words, string(u))
	}
	return strings.Join(words, ",")
}

// over says whether a daemon that was started here has ended.
func over(c *child) bool {
	if c == nil {
		return false
	}
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// sleep returns false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
