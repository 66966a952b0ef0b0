// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// bell wakes everybody who waits. Whoever takes the channel before looking at what it is rung
// for misses nothing. The zero bell is ready; safe for concurrent use.
type bell struct {
	mu sync.Mutex
	ch chan struct{}
}

// heard is closed by the next ring.
func (b *bell) heard() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// fileID tells one file from another of the same name; zero for no file. The time of its
// making is part of it, because a file system hands the inode of a removed file to the next one.
type fileID struct {
	dev, inode uint64
	made       time.Time
}

// identify is zero for a file that cannot be looked at: it is as good as gone.
func identify(path string) fileID {
	info, err := os.Lstat(path)
	if err != nil {
		return fileID{}
	}
	id := fileID{made: info.ModTime()}
	if info.IsDir() {
		id.made = time.Time{} // a folder's changes with its files
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		id.dev, id.inode = stat.Dev, stat.Ino
	}
	return id
}

// folderWatch rings when something in one of its folders may have changed: at once where the
// kernel tells, and every so often where it does not or a message was lost. Who hears it looks.
type folderWatch struct {
	bell
	folders []string
	every   time.Duration
	log     *slog.Logger
	watched atomic.Bool
	// complained is the last trouble that was logged.
	complained string
}

func newFolderWatch(log *slog.Logger, every time.Duration, folders ...string) *folderWatch {
	slices.Sort(folders)
	return &folderWatch{folders: slices.Compact(folders), every: every, log: log}
}

// run watches until ctx ends.
func (w *folderWatch) run(ctx context.Context) {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.complain(err)
		w.look(ctx, tick.C)
		return
	}
	defer watcher.Close()
	known := map[string]fileID{}
	for {
		w.renew(watcher, known)
		select {
		case <-ctx.Done():
			return
		case event := <-watcher.Events:
			if !concerns(event, w.folders) {
				continue
			}
		case err := <-watcher.Errors:
			w.complain(err)
		case <-tick.C:
		}
		w.ring()
	}
}

// look is the watch without the kernel's help.
func (w *folderWatch) look(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
			w.ring()
		}
	}
}

// renew watches folders that are new, or another one under the same name.
func (w *folderWatch) renew(watcher *fsnotify.Watcher, known map[string]fileID) {
	for _, folder := range w.folders {
		id := identify(folder)
		if id == known[folder] {
			continue
		}
		if known[folder] != (fileID{}) {
			// The watch of a removed folder is gone already, that of a moved one is not.
			_ = watcher.Remove(folder)
		}
		known[folder] = fileID{}
		if id != (fileID{}) {
			if err := watcher.Add(folder); err != nil {
				w.complain(err)
			} else {
				known[folder] = id
			}
		}
	}
	w.watched.Store(len(w.folders) > 0 && !slices.ContainsFunc(w.folders, func(f string) bool {
		return known[f] == fileID{}
	}))
}

// complain logs each trouble once: it comes with every look.
func (w *folderWatch) complain(err error) {
	if err.Error() != w.complained {
		w.complained = err.Error()
		w.log.Warn("the kernel does not tell of changes in the kubelet's folder; looking for them instead", "err", err)
	}
}

// concerns passes over what the kubelet writes all the time beside its sockets.
func concerns(event fsnotify.Event, folders []string) bool {
	if event.Op&(fsnotify.Create|fsnotify.Remove|fsnotify.Rename) == 0 {
		return false
	}
	return filepath.Ext(event.Name) == ".sock" || slices.Contains(folders, event.Name)
}
