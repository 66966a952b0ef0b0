// SPDX-License-Identifier: Apache-2.0

package dcgm

// #include "binding.h"
import "C"

import (
	"math/bits"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// cpu is a CPU with the numbers of the cores it owns.
type cpu struct {
	id    uint32
	cores []uint32
}

// cpuCores lists the CPUs that DCGM can see into: Grace, where its sysmon module runs.
func (h *handle) cpuCores() ([]cpu, error) {
	// Version 1, since what later ones add is not needed.
	raw := new(C.struct_cpu_hierarchy)
	err := h.do("dcgmGetCpuHierarchy", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_cpus(l, id, raw)
	})
	if err != nil {
		return nil, err
	}
	var cpus []cpu
	for _, c := range first(raw.at[:], raw.count) {
		cpus = append(cpus, cpu{id: uint32(c.id), cores: coresIn(c.cores.mask[:])})
	}
	return cpus, nil
}

func coresIn(masks []C.uint64_t) []uint32 {
	const width = 64
	var cores []uint32
	for i, word := range masks {
		for mask := uint64(word); mask != 0; mask &= mask - 1 {
			cores = append(cores, uint32(i*width+bits.TrailingZeros64(mask)))
		}
	}
	return cores
}

// The states of a link.
const (
	linkUnsupported int32 = iota
	linkDisabled
	linkDown
	linkUp
)

// link is one NVLink port of a GPU or switch.
type link struct {
	parent entity
	// port is NVML's number, from 0.
	port  int
	state int32
}

// links lists the NVLink ports of all GPUs and switches, without those that the hardware does
// not have.
func (h *handle) links() ([]link, error) {
	raw := new(C.struct_nvlink_status)
	err := h.do("dcgmGetNvLinkLinkStatus", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_links(l, id, raw)
	})
	if err != nil {
		return nil, err
	}
	var links []link
	for i := range first(raw.gpus[:], raw.gpu_count) {
		g := &raw.gpus[i]
		links = appendLinks(links, entity{groupGPU, uint32(g.gpu)}, g.state[:])
	}
	for i := range first(raw.switches[:], raw.switch_count) {
		s := &raw.switches[i]
		links = appendLinks(links, entity{groupSwitch, uint32(s.nvswitch)}, s.state[:])
	}
	return links, nil
}

func appendLinks(links []link, parent entity, states []C.int32_t) []link {
	for port, state := range states {
		if int32(state) != linkUnsupported {
			links = append(links, link{parent: parent, port: port, state: int32(state)})
		}
	}
	return links
}

// entity is the link as DCGM 4.3.1 and newer number it; older ones number otherwise.
func (l link) entity() entity {
	const portShift, parentShift = 8, 24
	return entity{groupLink, uint32(l.parent.group) | uint32(l.port)<<portShift | l.parent.id<<parentShift}
}

// linkOf undoes link.entity; the state is not in the number.
func linkOf(id uint32) link {
	const portShift, parentShift = 8, 24
	return link{
		parent: entity{entityGroup(id & 0xff), id >> parentShift},
		port:   int(id >> portShift & 0xffff),
	}
}

// peer is the way from one GPU to another over NVLink.
type peer struct {
	from, to uint32
	status   gpu.PeerStatus
}

// peers lists the ways between all GPUs. It is missing before DCGM 4.3.
func (h *handle) peers() ([]peer, error) {
	raw := new(C.struct_nvlink_p2p_status)
	err := h.do("dcgmGetNvLinkP2PStatus", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_peers(l, id, raw)
	})
	if err != nil {
		return nil, err
	}
	var peers []peer
	gpus := first(raw.gpus[:], raw.gpu_count)
	for i := range gpus {
		for j := range gpus {
			if i != j {
				peers = append(peers, peer{uint32(gpus[i].gpu), uint32(gpus[j].gpu), gpu.PeerStatus(gpus[i].status[j])})
			}
		}
	}
	return peers, nil
}

// directLinks are how many NVLinks lead from a GPU to each other one that has some.
func (h *handle) directLinks(from uint32) (map[uint32]int, error) {
	// Version 1, which all engines take; it has room for 32 links of a GPU.
	raw := new(C.struct_device_topology)
	err := h.do("dcgmGetDeviceTopology", "", func(l *C.struct_library, id C.uint64_t) C.int32_t {
		return C.call_topology(l, id, C.uint32_t(from), raw)
	})
	if err != nil {
		return nil, err
	}
	links := make(map[uint32]int)
	for _, p := range first(raw.paths[:], raw.count) {
		if n := bits.OnesCount32(uint32(p.links)); n > 0 {
			links[uint32(p.gpu)] = n
		}
	}
	return links, nil
}

// allDirectLinks are the links between all the GPUs, by pair, and why some are not told, if any.
func (h *handle) allDirectLinks(gpus []uint32) (map[[2]uint32]int, error) {
	all := make(map[[2]uint32]int)
	var errs error
	for _, from := range gpus {
		links, err := h.directLinks(from)
		errs = both(errs, err)
		for to, n := range links {
			all[[2]uint32{from, to}] = n
		}
	}
	return all, errs
}
