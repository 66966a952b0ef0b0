// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxCheckpoint bounds the memory a checkpoint can take; a node with 16 GPUs of
// 100 replicas has one of a few hundred kilobytes.
const maxCheckpoint = 64 << 20

var errMalformed = errors.New("malformed device checkpoint")

// checkpoint follows the file in which the kubelet's device manager keeps the
// devices of each pod UID. The kubelet replaces the file by renaming, so a new
// content is a new inode.
type checkpoint struct {
	path   string
	notice *notice

	mu sync.Mutex
	// info is of the file that record was read from; nil when it has to be read.
	info   fs.FileInfo
	record *record
	// fault is why the file of info was of no use.
	fault error
}

// load is the present record: the same pointer as long as the file is the same.
// Where there is none, the text is the reason, and is empty when no path was given.
func (c *checkpoint) load() (*record, string) {
	if c.path == "" {
		return nil, ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := os.Stat(c.path)
	switch {
	case err != nil:
		c.info, c.record, c.fault = nil, nil, err
	case c.info == nil || !unchanged(c.info, info):
		c.info, c.record, c.fault = read(c.path, info)
	}
	if c.fault == nil {
		c.notice.back()
		return c.record, ""
	}
	level, reason, hint := slog.LevelWarn, SkippedCheckpointUnreadable, "see that the kubelet's device-plugins directory is mounted and readable; pods go without UIDs"
	switch {
	case errors.Is(c.fault, errMalformed):
		reason, hint = SkippedCheckpointMalformed, "see whether it is the kubelet's device checkpoint; pods go without UIDs"
	case errors.Is(c.fault, fs.ErrNotExist):
		level, hint = slog.LevelInfo, "no device plugin has registered yet, or the kubelet's device-plugins directory is not mounted; pods go without UIDs"
	}
	c.notice.lost(level, reason, "err", fmt.Errorf("read device checkpoint %s: %w; %s", c.path, c.fault, hint))
	return nil, reason
}

func unchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// read returns the file's identity beside its record. The identity is nil where
// another attempt on the same file could end otherwise.
func read(path string, info fs.FileInfo) (fs.FileInfo, *record, error) {
	// A pipe would block in open for as long as nobody writes to it.
	if !info.Mode().IsRegular() {
		return nil, nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	// The path may already be another file than the one that was looked at.
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	if info.Size() > maxCheckpoint {
		return info, nil, fmt.Errorf("%d bytes, more than the %d that are read", info.Size(), maxCheckpoint)
	}
	// One byte more than stated shows a file that grows, which is then malformed or
	// differs from info at the next look.
	data, err := io.ReadAll(io.LimitReader(f, info.Size()+1))
	if err != nil {
		return nil, nil, err
	}
	r, err := parseCheckpoint(data)
	return info, r, err
}

// record is what a checkpoint says: the pod UID for what PodResources says of a
// device, and the devices of the plugins that have registered. A nil record is empty.
type record struct {
	// uids are empty where several pods have an entry for the same thing.
	uids map[deviceKey]string
	// registered are ordered by resource.
	registered []*podresources.ContainerDevices
}

type deviceKey struct{ container, resource, id string }

// uid is that of the only pod with such an entry, else empty; ambiguous says that
// there are several.
func (r *record) uid(container, resource, id string) (uid string, ambiguous bool) {
	if r == nil {
		return "", false
	}
	uid, found := r.uids[deviceKey{container, resource, id}]
	return uid, found && uid == ""
}

// devices are those on record, whether their plugin is there now or not.
func (r *record) devices() []*podresources.ContainerDevices {
	if r == nil {
		return nil
	}
	return r.registered
}

// parseCheckpoint reads the device manager's checkpoint. The checksum in it is of
// Go's memory layout of the data and cannot be verified from outside; the kubelet
// renames a complete file into place, so none is seen half written.
func parseCheckpoint(data []byte) (*record, error) {
	var file struct {
		Data *struct {
			PodDeviceEntries []struct {
				PodUID        string
				ContainerName string
				ResourceName  string
				// DeviceIDs are by NUMA node; an id is under each node it belongs to.
				DeviceIDs map[string][]string
			}
			// RegisteredDevices are the ids by resource.
			RegisteredDevices map[string][]string
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if file.Data == nil {
		return nil, fmt.Errorf("%w: no Data", errMalformed)
	}
	r := &record{uids: make(map[deviceKey]string)}
	for _, e := range file.Data.PodDeviceEntries {
		if e.PodUID == "" || len(e.PodUID) > maxText {
			continue
		}
		for _, ids := range e.DeviceIDs {
			for _, id := range ids {
				key := deviceKey{e.ContainerName, e.ResourceName, id}
				if uid, known := r.uids[key]; known && uid != e.PodUID {
					r.uids[key] = ""
				} else {
					r.uids[key] = e.PodUID
				}
			}
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(file.Data.RegisteredDevices)) {
		r.registered = append(r.registered, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: file.Data.RegisteredDevices[resource]})
	}
	return r, nil
}
