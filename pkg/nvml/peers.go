// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"slices"
	"strings"
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
	places := make(map[string]gpu.UUID)
	for _, d := range devices {
		if !d.IsMIG() {
			uuids = append(uuids, d.UUID)
			lost[d.UUID], index[d.UUID] = d.Lost, d.Index
			places[strings.ToUpper(d.PCIBusID)] = d.UUID
		}
	}
	due := b.at.IsZero() || time.Since(b.at) >= peersInterval || !slices.Equal(uuids, b.known)
	if due && !b.open && b.lib.has("nvmlDeviceGetP2PStatus") {
		b.known = uuids
		b.asked, b.open = begin(b.lane, func() []gpu.Peer { return b.round(uuids, index, places) })
	}
	out := make([]gpu.Peer, 0, len(uuids)*len(uuids))
	asked := make(map[[2]gpu.UUID]gpu.Peer, len(b.peers))
	for _, p := range b.peers {
		asked[[2]gpu.UUID{p.From, p.To}] = p
	}
	for _, from := range uuids {
		for _, to := range uuids {
			p, known := asked[[2]gpu.UUID{from, to}]
			if from == to || b.at.IsZero() {
				continue
			}
			if !known || lost[from] || lost[to] {
				p = gpu.Peer{From: from, To: to, Status: gpu.PeerUnknown}
			}
			out = append(out, p)
		}
	}
	return out
}

// round asks for every pair. places are the GPUs by their PCI addresses.
func (b *peerBook) round(uuids []gpu.UUID, index map[gpu.UUID]int, places map[string]gpu.UUID) []gpu.Peer {
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
		links := b.links(handles[from], places)
		for _, to := range uuids {
			if from == to || handles[from] == nil || handles[to] == nil {
				continue
			}
			status, ret := b.lib.DeviceGetP2PStatus(handles[from], handles[to], nvml.P2P_CAPS_INDEX_NVLINK)
			peer := gpu.Peer{From: from, To: to, Status: gpu.PeerStatus(status), NVLinks: links[to]}
			if ret != nvml.SUCCESS || peer.Status < gpu.PeerOK || peer.Status > gpu.PeerUnknown {
				peer.Status = gpu.PeerUnknown
			}
			out = append(out, peer)
		}
	}
	return out
}

// remoteFunction tells what is at the other end of a link.
const remoteFunction = "nvmlDeviceGetNvLinkRemotePciInfo_v2|nvmlDeviceGetNvLinkRemotePciInfo"

// links are how many active NVLinks lead from a GPU straight to each other one. One that leads to
// a switch leads to none of them.
func (b *peerBook) links(from nvml.Device, places map[string]gpu.UUID) map[gpu.UUID]int {
	out := make(map[gpu.UUID]int)
	if from == nil || !b.lib.has("nvmlDeviceGetNvLinkState", remoteFunction) {
		return out
	}
	for link := range mostLinks {
		active, ret := from.GetNvLinkState(link)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			// The GPU has fewer links.
			break
		}
		if ret != nvml.SUCCESS || active != nvml.FEATURE_ENABLED {
			continue
		}
		remote, ret := from.GetNvLinkRemotePciInfo(link)
		if ret != nvml.SUCCESS {
			continue
		}
		if to, known := places[strings.ToUpper(cString(remote.BusId[:]))]; known {
			out[to]++
		}
	}
	return out
}
