// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// gpmMetric is a profiling field as NVML's GPU performance monitor has it.
type gpmMetric struct {
	id     gpu.FieldID
	metric nvml.GpmMetricId
	as     func(float64) gpu.Value
}

// gpmMetrics are DCGM's profiling fields. The monitor has percent and MiB/s, DCGM ratios and
// bytes per second.
func gpmMetrics() []gpmMetric {
	all := []gpmMetric{
		{1001, nvml.GPM_METRIC_GRAPHICS_UTIL, ratio},
		{1002, nvml.GPM_METRIC_SM_UTIL, ratio},
		{1003, nvml.GPM_METRIC_SM_OCCUPANCY, ratio},
		{1004, nvml.GPM_METRIC_ANY_TENSOR_UTIL, ratio},
		{1005, nvml.GPM_METRIC_DRAM_BW_UTIL, ratio},
		{1006, nvml.GPM_METRIC_FP64_UTIL, ratio},
		{1007, nvml.GPM_METRIC_FP32_UTIL, ratio},
		{1008, nvml.GPM_METRIC_FP16_UTIL, ratio},
		{1009, nvml.GPM_METRIC_PCIE_TX_PER_SEC, bytesPerSecond},
		{1010, nvml.GPM_METRIC_PCIE_RX_PER_SEC, bytesPerSecond},
		{1011, nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, bytesPerSecond},
		{1012, nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, bytesPerSecond},
		{1013, nvml.GPM_METRIC_IMMA_TENSOR_UTIL, ratio},
		{1014, nvml.GPM_METRIC_HMMA_TENSOR_UTIL, ratio},
		{1015, nvml.GPM_METRIC_DFMA_TENSOR_UTIL, ratio},
		{1016, nvml.GPM_METRIC_INTEGER_UTIL, ratio},
		{1033, nvml.GPM_METRIC_NVOFA_0_UTIL, ratio},
		{1034, nvml.GPM_METRIC_NVOFA_1_UTIL, ratio},
		{1076, nvml.GPM_METRIC_C2C_TOTAL_TX_PER_SEC, bytesPerSecond},
		{1077, nvml.GPM_METRIC_C2C_DATA_TX_PER_SEC, bytesPerSecond},
		{1078, nvml.GPM_METRIC_C2C_TOTAL_RX_PER_SEC, bytesPerSecond},
		{1079, nvml.GPM_METRIC_C2C_DATA_RX_PER_SEC, bytesPerSecond},
		{1080, nvml.GPM_METRIC_HOSTMEM_CACHE_HIT, whole},
		{1081, nvml.GPM_METRIC_HOSTMEM_CACHE_MISS, whole},
		{1082, nvml.GPM_METRIC_PEERMEM_CACHE_HIT, whole},
		{1083, nvml.GPM_METRIC_PEERMEM_CACHE_MISS, whole},
	}
	for n := range nvml.GpmMetricId(8) {
		all = append(all,
			gpmMetric{1017 + gpu.FieldID(n), nvml.GPM_METRIC_NVDEC_0_UTIL + n, ratio},
			gpmMetric{1025 + gpu.FieldID(n), nvml.GPM_METRIC_NVJPG_0_UTIL + n, ratio})
	}
	for n := range nvml.GpmMetricId(linksNumbered) {
		all = append(all,
			gpmMetric{1040 + 2*gpu.FieldID(n), nvml.GPM_METRIC_NVLINK_L0_TX_PER_SEC + 2*n, bytesPerSecond},
			gpmMetric{1041 + 2*gpu.FieldID(n), nvml.GPM_METRIC_NVLINK_L0_RX_PER_SEC + 2*n, bytesPerSecond})
	}
	// Counters, from R580 or so.
	for i, metric := range []nvml.GpmMetricId{
		nvml.GPM_METRIC_SM_CYCLES_ELAPSED, nvml.GPM_METRIC_SM_CYCLES_ACTIVE, nvml.GPM_METRIC_MMA_CYCLES_ACTIVE,
		nvml.GPM_METRIC_DMMA_CYCLES_ACTIVE, nvml.GPM_METRIC_HMMA_CYCLES_ACTIVE, nvml.GPM_METRIC_IMMA_CYCLES_ACTIVE,
		nvml.GPM_METRIC_DFMA_CYCLES_ACTIVE, nvml.GPM_METRIC_PCIE_TX, nvml.GPM_METRIC_PCIE_RX,
		nvml.GPM_METRIC_INTEGER_CYCLES_ACTIVE, nvml.GPM_METRIC_FP64_CYCLES_ACTIVE,
		nvml.GPM_METRIC_FP32_CYCLES_ACTIVE, nvml.GPM_METRIC_FP16_CYCLES_ACTIVE,
	} {
		all = append(all, gpmMetric{1084 + gpu.FieldID(i), metric, whole})
	}
	return all
}

// ratio makes a share of 1 of percent; a little above all is a matter of rounding.
func ratio(percent float64) gpu.Value {
	switch {
	case math.IsNaN(percent):
		return gpu.Absent(gpu.ReasonBlank)
	case percent < 0 || percent > 102:
		return gpu.Absent(gpu.ReasonImplausible)
	}
	return gpu.Float(min(percent/100, 1))
}

func bytesPerSecond(mib float64) gpu.Value { return whole(mib * (1 << 20)) }

func whole(v float64) gpu.Value {
	switch {
	case math.IsNaN(v):
		return gpu.Absent(gpu.ReasonBlank)
	case v < 0 || v >= math.MaxInt64:
		return gpu.Absent(gpu.ReasonImplausible)
	}
	return gpu.Int(int64(v))
}

// gpmFunctions are what profiling takes.
func gpmFunctions() []string {
	return []string{
		"nvmlGpmSampleGet", "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree",
		"nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
	}
}

// gpmClosest is how far apart two samples must be: the hardware's counters are refreshed ten
// times a second.
const gpmClosest = 100 * time.Millisecond

// gpmFarthest is how far apart two samples may be, for a reading after a pause: an average over
// a longer time would be taken for that of the last interval.
const gpmFarthest = 10 * time.Minute

// monitor has the samples of one GPU or GPU instance. A metric is what happened between two.
type monitor struct {
	// taken is the sample of an earlier reading, spare the one to fill next.
	taken, spare nvml.GpmSample
	at           time.Time
	// last are the answers of an earlier reading, for one that comes too soon.
	last map[gpu.FieldID]gpu.Value
	// seen is the reading in which the entity was last there.
	seen uint64
}

func gpmQuery() *query {
	all := gpmMetrics()
	q := &query{needs: gpmFunctions()}
	for _, m := range all {
		q.fields = append(q.fields, m.id)
	}
	q.read = func(p *probe) {
		if reason := p.gpmReason(); reason != gpu.ReasonNone {
			for _, m := range all {
				p.put(m.id, gpu.Absent(reason))
			}
			return
		}
		p.profile(all)
	}
	return q
}

// gpmReason is why the GPU has no performance monitor, ReasonNone if it has.
func (c *card) gpmReason() gpu.Reason {
	if c.gpmKnown {
		return c.gpmLacks
	}
	if !c.lib.has(gpmFunctions()...) {
		c.gpmKnown, c.gpmLacks = true, gpu.ReasonNotSupported
		return c.gpmLacks
	}
	support, ret := c.handle.GpmQueryDeviceSupport()
	c.note(ret)
	reason := reasonOf(ret)
	if ret == nvml.SUCCESS && support.IsSupportedDevice == 0 {
		reason = gpu.ReasonNotSupported
	}
	if reason == gpu.ReasonNone || reason == gpu.ReasonNotSupported {
		c.gpmKnown, c.gpmLacks = true, reason
	}
	return reason
}

// profile answers the profiling fields from this reading's sample and the one before.
func (p *probe) profile(all []gpmMetric) {
	m := p.monitors[p.instance]
	if m == nil {
		m = &monitor{}
		p.monitors[p.instance] = m
	}
	m.seen = p.readings
	if m.taken != nil && !m.at.IsZero() && time.Since(m.at) < gpmClosest {
		for _, metric := range all {
			p.put(metric.id, m.last[metric.id])
		}
		return
	}
	ret := p.sample(m)
	if ret != nvml.SUCCESS {
		m.at = time.Time{}
		for _, metric := range all {
			p.fail(ret, metric.id)
		}
		return
	}
	first := m.at.IsZero() || time.Since(m.at) > gpmFarthest
	before := m.taken
	m.taken, m.spare, m.at = m.spare, before, time.Now()
	clear(m.last)
	if m.last == nil {
		m.last = make(map[gpu.FieldID]gpu.Value)
	}
	if !first {
		p.metrics(m, before, all)
	}
	for _, metric := range all {
		p.put(metric.id, m.last[metric.id])
	}
}

// sample fills the spare sample, with what it needs first.
func (p *probe) sample(m *monitor) nvml.Return {
	for _, s := range []*nvml.GpmSample{&m.spare, &m.taken} {
		if *s != nil {
			continue
		}
		allocated, ret := p.lib.GpmSampleAlloc()
		if ret != nvml.SUCCESS {
			return ret
		}
		*s = allocated
	}
	if p.instance != gpu.NoInstance {
		return m.spare.MigGet(p.handle, p.instance)
	}
	return m.spare.Get(p.handle)
}

// metrics works out what happened between the samples. A driver that does not know one of the
// metrics may refuse all of them; then each is asked for alone, and those that it refused are
// not asked for again. Where it refuses every one, the samples may be what it does not take.
func (p *probe) metrics(m *monitor, before nvml.GpmSample, all []gpmMetric) {
	var wanted []gpmMetric
	for _, metric := range all {
		switch {
		case !p.wants(metric.id):
		case p.gpmRefused[metric.metric]:
			m.last[metric.id] = gpu.Absent(gpu.ReasonNotSupported)
		default:
			wanted = append(wanted, metric)
		}
	}
	if !refuses(p.askMetrics(m, before, wanted)) {
		return
	}
	var refused []gpmMetric
	for i, metric := range wanted {
		if refuses(p.askMetrics(m, before, wanted[i:i+1])) {
			m.last[metric.id] = gpu.Absent(gpu.ReasonNotSupported)
			refused = append(refused, metric)
		}
	}
	for _, metric := range refused {
		p.gpmRefused[metric.metric] = p.gpmRefused[metric.metric] || len(refused) < len(wanted)
	}
}

// refuses reports whether a request for metrics is not one for this driver.
func refuses(ret nvml.Return) bool {
	return ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_SUPPORTED
}

func (p *probe) askMetrics(m *monitor, before nvml.GpmSample, wanted []gpmMetric) nvml.Return {
	if len(wanted) == 0 {
		return nvml.SUCCESS
	}
	if p.gpmRequest == nil {
		p.gpmRequest = &nvml.GpmMetricsGetType{}
	}
	request := p.gpmRequest
	request.NumMetrics, request.Sample1, request.Sample2 = uint32(len(wanted)), before, m.taken
	for i, metric := range wanted {
		request.Metrics[i] = nvml.GpmMetric{MetricId: uint32(metric.metric)}
	}
	ret := p.lib.GpmMetricsGet(request)
	p.note(ret)
	for i, metric := range wanted {
		got := &request.Metrics[i]
		switch own := nvml.Return(int32(got.NvmlReturn)); {
		case ret != nvml.SUCCESS:
			m.last[metric.id] = gpu.Absent(reasonOf(ret))
		case own == nvml.ERROR_INVALID_ARGUMENT:
			m.last[metric.id] = gpu.Absent(gpu.ReasonNotSupported)
		case own != nvml.SUCCESS:
			m.last[metric.id] = gpu.Absent(reasonOf(own))
		default:
			m.last[metric.id] = metric.as(got.Value)
		}
	}
	return ret
}

// endMonitors frees the samples of entities that are gone, or of all where profiling is not
// asked for any more: an average over a time in which nobody asked would mean nothing.
func (c *card) endMonitors() {
	for instance, m := range c.monitors {
		if m.seen != c.readings {
			c.endMonitor(instance)
		}
	}
}

// endMonitor frees the samples of one entity.
func (c *card) endMonitor(instance int) {
	if m := c.monitors[instance]; m != nil {
		m.free()
		delete(c.monitors, instance)
	}
}

func (m *monitor) free() {
	for _, s := range []nvml.GpmSample{m.taken, m.spare} {
		if s != nil {
			_ = s.Free()
		}
	}
}
