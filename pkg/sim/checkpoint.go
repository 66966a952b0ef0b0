// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// checkpoint is the file in which a kubelet's device manager keeps what it has handed out:
// the one place on a node that tells a pod's UID from a device. It is written when an answer
// would differ from it, before the answer, as a kubelet writes it before a pod starts.
type checkpoint struct {
	path string

	mu      sync.Mutex
	written struct {
		state *nodeState
		round int64
	}
}

// keep makes the file that of a moment.
func (c *checkpoint) keep(n *Node, m moment) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.path == "" || c.written.state == m.state && c.written.round == m.round {
		return nil
	}
	type entry struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           map[string][]string
		AllocResp                           []byte
	}
	var file struct {
		Data struct {
			PodDeviceEntries  []entry
			RegisteredDevices map[string][]string
		}
		Checksum uint64
	}
	for _, p := range m.state.active {
		e := entry{
			PodUID: p.uid(n.seed, m.round), ContainerName: p.spec.container, ResourceName: p.spec.resource,
			DeviceIDs: map[string][]string{},
		}
		for _, st := range p.seats {
			for _, numa := range n.scenario.cards[st.unit.card].numa {
				node := fmt.Sprint(numa)
				e.DeviceIDs[node] = append(e.DeviceIDs[node], n.scenario.seatID(st.unit, st.replica))
			}
		}
		if len(p.seats) > 0 {
			file.Data.PodDeviceEntries = append(file.Data.PodDeviceEntries, e)
		}
	}
	// A plugin that is away stays on record with what it had.
	present := *m.state
	present.away = nil
	file.Data.RegisteredDevices = map[string][]string{}
	present.eachOffered(func(st seat) {
		ids := file.Data.RegisteredDevices[st.unit.resource]
		file.Data.RegisteredDevices[st.unit.resource] = append(ids, n.scenario.seatID(st.unit, st.replica))
	})
	data, err := json.Marshal(file)
	if err != nil {
		return fmt.Errorf("write device checkpoint: %w", err)
	}
	if err := replace(c.path, data); err != nil {
		return fmt.Errorf("write device checkpoint: %w", err)
	}
	c.written.state, c.written.round = m.state, m.round
	return nil
}

// replace gives a file new content that nobody sees half of.
func replace(path string, data []byte) error {
	next := path + ".next"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}
