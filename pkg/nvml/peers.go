// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// peersInterval is how often the ways between GPUs are looked at; they hardly ever change.
const peersInterval = 30 * time.Second

// peerBook has the ways between GPUs, asked for on a lane of their own: a call about two GPUs
// hangs with either.
type peerBook struct {
	lane *lane
	lib  *library
	// asked is the round under way, peers the result of the last, of known.
	asked call[[]gpu.Peer]
	open  bool
	peers []gpu.Peer
	known []gpu.UUID
	at    time.Time
}

// between is what is known of the ways between GPUs, after a round was begun where one is due.
func (b *peerBook) between(devices []gpu.Device) []gpu.Peer {
	if b.open {
		if peers, ok := b.asked.poll(); ok {
			b.peers, b.open, b.at = peers, false, time.Now()
		}
	}
	var uuids []gpu.UUID
	lost := make(map[gpu.UUID]bool)
	index := make(map[gpu.UUID]int)
	for _, d := range devices {
		if !d.IsMIG() {
			uuids = append(uuids, d.UUID)
			lost[d.UUID], index[d.UUID] = d.Lost, d.Index
		}
	}
	due := b.at.IsZero() || time.Since(b.at) >= peersInterval || !slices.Equal(uuids, b.known)
	if due && !b.open && b.lib.has("nvmlDeviceGetP2PStatus") {
		b.known = uuids
		b.asked, b.open = begin(b.lane, func() []gpu.Peer { return b.round(uuids, index) })
	}
	out := make([]gpu.Peer, 0, len(uuids)*len(uuids))
	status := make(map[[2]gpu.UUID]gpu.PeerStatus, len(b.peers))
	for _, p := range b.peers {
		status[[2]gpu.UUID{p.From, p.To}] = p.Status
	}
	for _, from := range uuids {
		for _, to := range uuids {
			s, known := status[[2]gpu.UUID{from, to}]
			if from == to || b.at.IsZero() {
				continue
			}
			if !known || lost[from] || lost[to] {
				s = gpu.PeerUnknown
			}
			out = append(out, gpu.Peer{From: from, To: to, Status: s})
		}
	}
	return out
}

// round asks for every pair.
func (b *peerBook) round(uuids []gpu.UUID, index map[gpu.UUID]int) []gpu.Peer {
	handles := make(map[gpu.UUID]nvml.Device, len(uuids))
	for _, uuid := range uuids {
		handle, ret := b.lib.DeviceGetHandleByIndex(index[uuid])
		if ret != nvml.SUCCESS {
			continue
		}
		if is, ret := handle.GetUUID(); ret == nvml.SUCCESS && gpu.UUID(is) == uuid {
			handles[uuid] = handle
		}
	}
	var out []gpu.Peer
	for _, from := range uuids {
		for _, to := range uuids {
			if from == to || handles[from] == nil || handles[to] == nil {
				continue
			}
			status, ret := b.lib.DeviceGetP2PStatus(handles[from], handles[to], nvml.P2P_CAPS_INDEX_NVLINK)
			peer := gpu.Peer{From: from, To: to, Status: gpu.PeerStatus(status)}
			if ret != nvml.SUCCESS || peer.Status < gpu.PeerOK || peer.Status > gpu.PeerUnknown {
				peer.Status = gpu.PeerUnknown
			}
			out = append(out, peer)
		}
	}
	return out
}
