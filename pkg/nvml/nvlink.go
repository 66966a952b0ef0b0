// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// linksNumbered is how many links DCGM has numbered fields for.
const linksNumbered = 18

// mostLinks bounds what a driver says of its links.
const mostLinks = nvml.NVLINK_MAX_LINKS

// direction is which way the data of a throughput goes.
type direction int

const (
	bothWays direction = iota
	sent
	received
)

// throughput is what a field of DCGM says of the traffic: of which link, and which way.
type throughput struct {
	id  gpu.FieldID
	way direction
	// link is its number, or allLinks; for a field of a link entity it is not used.
	link uint32
}

// throughputs are the fields with rates in MB/s. DCGM takes 1000 KiB for a megabyte, and so do
// these, to be the same.
func throughputs() []throughput {
	all := []throughput{{449, bothWays, allLinks}, {843, sent, allLinks}, {897, received, allLinks}}
	for n := range uint32(linksNumbered) {
		both := 440 + n
		switch {
		case n >= 15:
			both = 494 + n - 15
		case n >= 12:
			both = 446 + n - 12
		case n >= 6:
			both = 475 + n - 6
		}
		all = append(all, throughput{gpu.FieldID(both), bothWays, n},
			throughput{gpu.FieldID(825 + n), sent, n}, throughput{gpu.FieldID(879 + n), received, n})
	}
	return all
}

// linkThroughputs are the same as fields of a link.
func linkThroughputs() []throughput {
	return []throughput{{1529, bothWays, 0}, {1530, sent, 0}, {1531, received, 0}}
}

// fieldLinkState is NVML's word for a link: 0 inactive, 1 active, 2 asleep.
const fieldLinkState = gpu.FieldID(1508)

func nvlinkQueries() []*query {
	queries := []*query{
		throughputQuery(throughputs(), func(_ *probe, t throughput) uint32 { return t.link }),
		throughputQuery(linkThroughputs(), func(p *probe, _ throughput) uint32 { return uint32(p.link) }),
		{
			fields: []gpu.FieldID{fieldLinkState}, needs: []string{"nvmlDeviceGetFieldValues"},
			read: func(p *probe) {
				for i := range p.linkStates {
					if v := &p.linkStates[i]; int(v.ScopeId) == p.link {
						give(p, fieldLinkState, v, fieldReturn(p.linkStatesRet, v), decoded)
					}
				}
			},
		},
	}
	for _, e := range linkErrors() {
		for n := range linksNumbered {
			queries = append(queries, e.query(e.field(n), func(*probe) int { return n }))
		}
		queries = append(queries, e.query(e.own, func(p *probe) int { return p.link }))
	}
	return queries
}

// askLinkStates asks for the states of all links that are read in one call.
func (c *card) askLinkStates(selected gpu.Selection) {
	c.linkStates, c.linkStatesRet = c.linkStates[:0], nvml.SUCCESS
	if !c.lib.has("nvmlDeviceGetFieldValues") {
		return
	}
	for n := range c.linkCount() {
		if selected.Minor(n) {
			c.linkStates = append(c.linkStates, nvml.FieldValue{FieldId: nvml.FI_DEV_NVLINK_GET_STATE, ScopeId: uint32(n)})
		}
	}
	if len(c.linkStates) > 0 {
		c.linkStatesRet = c.handle.GetFieldValues(c.linkStates)
	}
}

// linkError is a kind of error that each link counts.
type linkError struct {
	counter nvml.NvLinkErrorCounter
	// The fields of the links from this number on, and of a link entity.
	zero, six, twelve, fifteen, own gpu.FieldID
	// The field values of links 0 and 6, with those of the five links after each next to it.
	valueOf0, valueOf6 uint32
}

func linkErrors() []linkError {
	return []linkError{
		{
			nvml.NVLINK_ERROR_DL_CRC_FLIT, 400, 451, 406, 481, 1525,
			nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6,
		},
		{
			nvml.NVLINK_ERROR_DL_CRC_DATA, 410, 457, 416, 484, 1526,
			nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6,
		},
		{
			nvml.NVLINK_ERROR_DL_REPLAY, 420, 463, 426, 487, 1527,
			nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6,
		},
		{
			nvml.NVLINK_ERROR_DL_RECOVERY, 430, 469, 436, 491, 1528,
			nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6,
		},
	}
}

// field is the field of one link.
func (e linkError) field(link int) gpu.FieldID {
	switch {
	case link >= 15:
		return e.fifteen + gpu.FieldID(link-15)
	case link >= 12:
		return e.twelve + gpu.FieldID(link-12)
	case link >= 6:
		return e.six + gpu.FieldID(link-6)
	default:
		return e.zero + gpu.FieldID(link)
	}
}

// query asks for the counter of a link. Drivers before R520 have some as field values only.
func (e linkError) query(id gpu.FieldID, linkOf func(*probe) int) *query {
	return &query{fields: []gpu.FieldID{id}, needs: []string{"nvmlDeviceGetNvLinkErrorCounter"}, read: func(p *probe) {
		link := linkOf(p)
		n, ret := p.device.GetNvLinkErrorCounter(link, e.counter)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			// The GPU has no such link.
			ret = nvml.ERROR_NOT_SUPPORTED
		}
		if ret != nvml.ERROR_NOT_SUPPORTED || link >= 12 || !p.lib.has("nvmlDeviceGetFieldValues") {
			give(p, id, n, ret, number)
			return
		}
		v := []nvml.FieldValue{{FieldId: e.valueOf0 + uint32(link)}}
		if link >= 6 {
			v[0].FieldId = e.valueOf6 + uint32(link-6)
		}
		ret = fieldReturn(p.device.GetFieldValues(v), &v[0])
		give(p, id, &v[0], ret, decoded)
	}}
}

// meterOf is one counter of traffic with the rate it had last.
type meterOf struct {
	link uint32
	way  direction
}

type traffic struct {
	kib  uint64
	at   time.Duration
	rate gpu.Value
}

// throughputQuery makes rates of two readings of the counters, this and the one before.
func throughputQuery(all []throughput, linkOf func(*probe, throughput) uint32) *query {
	q := &query{needs: []string{"nvmlDeviceGetFieldValues"}}
	for _, t := range all {
		q.fields = append(q.fields, t.id)
	}
	q.read = func(p *probe) {
		var meters []meterOf
		p.batch = p.batch[:0]
		ask := func(link uint32, way direction, number uint32) {
			if m := (meterOf{link, way}); !slices.Contains(meters, m) {
				meters = append(meters, m)
				p.batch = append(p.batch, nvml.FieldValue{FieldId: number, ScopeId: link})
			}
		}
		for _, t := range all {
			if p.wants(t.id) && t.way != received {
				ask(linkOf(p, t), sent, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
			}
			if p.wants(t.id) && t.way != sent {
				ask(linkOf(p, t), received, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
			}
		}
		ret := p.device.GetFieldValues(p.batch)
		fresh := make(map[meterOf]gpu.Value, len(meters))
		for i, m := range meters {
			v := &p.batch[i]
			one := fieldReturn(ret, v)
			p.note(one)
			fresh[m] = p.trafficRate(m, v, one)
		}
		for _, t := range all {
			switch link := linkOf(p, t); {
			case !p.wants(t.id):
			case t.way == bothWays:
				p.put(t.id, sum(fresh[meterOf{link, sent}], fresh[meterOf{link, received}]))
			default:
				p.put(t.id, fresh[meterOf{link, t.way}])
			}
		}
	}
	return q
}

// trafficRate is the rate since the reading before, in units of 1000 KiB/s. A counter that fell
// has started anew, and has no rate.
func (c *card) trafficRate(m meterOf, v *nvml.FieldValue, ret nvml.Return) gpu.Value {
	if ret != nvml.SUCCESS {
		delete(c.traffic, m)
		return gpu.Absent(reasonOf(ret))
	}
	now := traffic{kib: binary.LittleEndian.Uint64(v.Value[:]), at: time.Duration(v.Timestamp) * time.Microsecond}
	if now.at <= 0 {
		now.at = time.Duration(time.Now().UnixNano())
	}
	before, known := c.traffic[m]
	switch {
	case !known || now.kib < before.kib:
		now.rate = gpu.Absent(gpu.ReasonBlank)
	case now.at <= before.at:
		// Nothing was counted anew since.
		return before.rate
	default:
		now.rate = number(uint64(float64(now.kib-before.kib) / (now.at - before.at).Seconds() / 1000))
	}
	c.traffic[m] = now
	return now.rate
}

// sum is both values together, or why there is none.
func sum(a, b gpu.Value) gpu.Value {
	x, ok := a.AsInt()
	if !ok {
		return a
	}
	y, ok := b.AsInt()
	if !ok {
		return b
	}
	return gpu.Int(x + y)
}

// linkCount is how many NVLinks the GPU has, 0 where that is not known.
func (c *card) linkCount() int {
	if c.links < 0 && c.lib.has("nvmlDeviceGetFieldValues") {
		v := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_LINK_COUNT}}
		if fieldReturn(c.handle.GetFieldValues(v), &v[0]) == nvml.SUCCESS {
			n, _ := decoded(&v[0]).AsInt()
			c.links = int(min(max(n, 0), mostLinks))
		}
	}
	return max(c.links, 0)
}
