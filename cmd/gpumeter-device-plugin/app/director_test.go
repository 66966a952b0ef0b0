// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream"
)

// handedOver keeps what a director hands over.
type handedOver struct{ states []deviceplugin.NodeState }

func (h *handedOver) Set(s deviceplugin.NodeState) { h.states = append(h.states, s) }

func (h *handedOver) last(t *testing.T) deviceplugin.NodeState {
	t.Helper()
	if len(h.states) == 0 {
		t.Fatal("nothing was handed over")
	}
	return h.states[len(h.states)-1]
}

// stage is a director in a test's hands, with its clock.
type stage struct {
	*director
	t   *testing.T
	to  *handedOver
	now time.Time
	// stream is what the client of the health stream knows.
	stream healthstream.ClientState
}

func newStage(t *testing.T, change func(*config)) *stage {
	c := defaults()
	c.env, c.stateDir, c.source = environ(nil), "", sourceAuto
	if change != nil {
		change(&c)
	}
	s := &stage{t: t, to: &handedOver{}, now: noon}
	s.director = newDirector(c, slog.New(slog.DiscardHandler), s.to, s.now)
	s.director.survey = func(d []deviceplugin.Device, l []deviceplugin.Link) (deviceplugin.Inventory, []error) {
		return deviceplugin.Inventory{Devices: d, Links: l}, nil
	}
	if c.source != sourceStream {
		s.engine = engineIn(t, "")
	}
	s.stream.Since = noon
	return s
}

func (s *stage) settle() *stage { s.director.settle(s.now); return s }

func (s *stage) config(text string) *stage {
	s.t.Helper()
	if err := s.takeConfig(configRead{name: "c.yaml", from: fromFile, data: []byte(text)}, s.now); err != nil {
		s.t.Fatal(err)
	}
	return s.settle()
}

func (s *stage) look(n int, events ...gpu.Event) *stage {
	s.takeLook(lookAt(s.now, "boot", n, events...))
	return s.settle()
}

// list is a list of the stream; lose loses the stream.
func (s *stage) list(l *healthstream.List) *stage {
	if !s.stream.Up {
		s.stream.Up, s.stream.Since = true, s.now
	}
	s.stream.List = &healthstream.Received{List: *l, At: s.now}
	s.takeStream(s.stream)
	return s.settle()
}

func (s *stage) lose() *stage {
	s.stream.Up, s.stream.Since, s.stream.Err = false, s.now, errors.New("gone")
	s.takeStream(s.stream)
	return s.settle()
}

func (s *stage) pass(d time.Duration) *stage {
	s.now = s.now.Add(d)
	return s.settle()
}

// handed are the statuses of the first n cards as they were last handed over.
func (s *stage) handed(n int) string {
	s.t.Helper()
	var out []string
	r := s.to.last(s.t).Report
	for _, d := range cards(n) {
		out = append(out, statusOf(r, d.UUID).String())
	}
	return strings.Join(out, " ")
}

func TestTheFirstListWaitsForTheFirstVerdict(t *testing.T) {
	s := newStage(t, nil).config("")
	if s.look(2); len(s.to.states) > 0 {
		t.Fatal("handed over before the exporter could speak")
	}
	if at := s.deadline(s.now); !at.Equal(noon.Add(verdictPatience)) {
		t.Errorf("the next thing to do is at %v", at)
	}
	s.list(listOf(healthy, unhealthy))
	if got := s.handed(2); got != "healthy unhealthy" || len(s.to.states) != 1 {
		t.Errorf("first handed over: %s, %d times", got, len(s.to.states))
	}
}

func TestWithoutAnExporterThePluginSpeaksForItselfInTime(t *testing.T) {
	s := newStage(t, nil).config("").look(2, xidOn("GPU-1", 79, noon)).pass(verdictPatience)
	if got := s.handed(2); got != "healthy unhealthy" {
		t.Errorf("handed over %s", got)
	}
	if st := s.status.Load(); st.verdicts != verdictOwn || st.monitorUp {
		t.Errorf("verdicts are %s, monitor %v", st.verdicts, st.monitorUp)
	}
	alone := newStage(t, func(c *config) { c.healthSocket = "" }).config("").look(1)
	if len(alone.to.states) != 1 {
		t.Error("waited for a stream that is switched off")
	}
}

func TestNothingIsHandedOverWithoutAChange(t *testing.T) {
	s := newStage(t, nil).config("").look(2).list(listOf(healthy, healthy))
	before := len(s.to.states)
	for range 60 {
		s.pass(time.Second).look(2).list(listOf(healthy, healthy))
	}
	if n := len(s.to.states) - before; n != 0 {
		t.Errorf("handed over %d times without a change", n)
	}
	s.list(listOf(healthy, unhealthy))
	if n := len(s.to.states) - before; n != 1 {
		t.Errorf("handed over %d times for one change", n)
	}
}

func TestABadConfigKeepsTheGoodOne(t *testing.T) {
	const shared = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: %d}]}}"
	s := newStage(t, nil).config(fmt.Sprintf(shared, 4)).look(1).list(listOf(healthy))
	good, before := s.status.Load(), parseRevision(s.to.last(t).Revision)
	if before.hash == "" || before.from != fromFile {
		t.Errorf("the config in force is told as %+v", before)
	}
	s.config("flags: {migStrategie: x}")
	if got := s.to.last(t).Settings.SharedResources[0].Replicas; got != 4 {
		t.Errorf("replicas %d", got)
	}
	if st := s.status.Load(); st.config.good || parseRevision(s.to.last(t).Revision) != before || !st.config.goodAt.Equal(good.config.goodAt) {
		t.Errorf("status after a bad config: %+v", st)
	}
	s.pass(time.Minute).config(fmt.Sprintf(shared, 8))
	if got := s.to.last(t).Settings.SharedResources[0].Replicas; got != 8 {
		t.Errorf("replicas %d", got)
	}
	if st := s.status.Load(); !st.config.good || parseRevision(s.to.last(t).Revision).hash == before.hash || !st.config.goodAt.Equal(s.now) {
		t.Errorf("status after a good config: %+v", st)
	}
}

func TestABadConfigAtTheStartIsAnError(t *testing.T) {
	s := newStage(t, nil)
	err := s.takeConfig(configRead{name: "c.yaml", data: []byte("version: v2")}, s.now)
	if err == nil || !strings.Contains(err.Error(), "c.yaml:1:10") {
		t.Errorf("error %v", err)
	}
	if err := s.takeConfig(configRead{err: errors.New("no such file")}, s.now); err == nil {
		t.Error("no config is no error")
	}
}

func TestALostStreamIsHeldAndThenThePolicySpeaks(t *testing.T) {
	s := newStage(t, func(c *config) {
		c.source, c.lostAfter, c.lostPolicy = sourceStream, 10*time.Minute, policyUnhealthy
	}).config("").list(listOf(healthy, unhealthy)).pass(time.Hour).lose()
	if got := s.handed(2); got != "healthy unhealthy" || s.status.Load().verdicts != verdictHeld {
		t.Errorf("when it was lost: %s by %s", got, s.status.Load().verdicts)
	}
	s.surveyed = s.now.Add(time.Hour)
	if at := s.deadline(s.now); !at.Equal(s.now.Add(10 * time.Minute)) {
		t.Errorf("the policy speaks at %v", at)
	}
	s.pass(10 * time.Minute)
	if got := s.handed(2); got != "unhealthy"+" unhealthy" || s.status.Load().verdicts != verdictPolicy {
		t.Errorf("after ten minutes: %s by %s", got, s.status.Load().verdicts)
	}
	s.list(listOf(healthy, unhealthy))
	if got := s.handed(2); got != "healthy unhealthy" || s.status.Load().verdicts != verdictStream {
		t.Errorf("when it is back: %s by %s", got, s.status.Load().verdicts)
	}
}

func TestTheInventoryIsThePluginsOwnElseTheStreams(t *testing.T) {
	s := newStage(t, nil).config("").list(listOf(healthy, healthy, healthy))
	if n, from := len(s.to.last(t).Inventory.Devices), s.status.Load().stockFrom; n != 3 || from != sourceStream {
		t.Errorf("%d devices from %s", n, from)
	}
	s.look(2)
	if n, from := len(s.to.last(t).Inventory.Devices), s.status.Load().stockFrom; n != 2 || from != sourceNVML {
		t.Errorf("%d devices from %s", n, from)
	}
	// A driver that is away for a while takes no GPU away.
	s.takeLook(look{at: s.now, err: errors.New("no driver")})
	if s.settle(); len(s.to.last(t).Inventory.Devices) != 2 {
		t.Error("a driver that is away took GPUs along")
	}
	only := newStage(t, func(c *config) { c.source = sourceNVML }).config("").list(listOf(healthy)).pass(time.Minute)
	if len(only.to.states) > 0 {
		t.Error("--source=nvml took the stream's devices")
	}
}

func TestAnExporterThatHasReadNothingTakesNothingAway(t *testing.T) {
	stream := func(c *config) { c.source = sourceStream }
	s := newStage(t, stream).config("").list(&healthstream.List{Epoch: "e"})
	if len(s.to.states) > 0 || s.status.Load().monitorUp {
		t.Error("a list of before the first reading counts")
	}
	s.list(listOf(healthy, unhealthy)).list(&healthstream.List{Epoch: "f"})
	if got := s.handed(2); got != "healthy unhealthy" || s.status.Load().verdicts != verdictHeld {
		t.Errorf("a restarted exporter without a reading: %s by %s", got, s.status.Load().verdicts)
	}
	s.list(&healthstream.List{Epoch: "f", Source: "dcgm"})
	if n := len(s.to.last(t).Inventory.Devices); n != 2 {
		t.Errorf("%d devices at once after a list without any", n)
	}
	s.pass(emptyPatience)
	if n := len(s.to.last(t).Inventory.Devices); n != 0 {
		t.Errorf("%d devices after the stream has told of none for %v", n, emptyPatience)
	}
}

func TestWhatTheKernelTellsLateIsSeen(t *testing.T) {
	s := newStage(t, func(c *config) { c.healthSocket = "" })
	numa := -1
	s.director.survey = func(d []deviceplugin.Device, _ []deviceplugin.Link) (deviceplugin.Inventory, []error) {
		out := append([]deviceplugin.Device(nil), d...)
		for i := range out {
			out[i].NUMANode = numa
		}
		return deviceplugin.Inventory{Devices: out}, []error{errors.New("no NUMA node")}
	}
	s.config("").look(1)
	numa = 1
	if s.pass(surveyPause).look(1); s.to.last(t).Inventory.Devices[0].NUMANode != 1 {
		t.Error("a NUMA node that is known later is not seen")
	}
}

func TestOnlyAProgramWithoutAnyHopeEnds(t *testing.T) {
	failed := look{at: noon, err: errors.New("no libnvidia-ml")}
	for _, c := range []struct {
		name   string
		change func(*config)
		file   string
		ends   bool
	}{
		{"the exporter may come", nil, "", false},
		{"no exporter", func(c *config) { c.healthSocket = "" }, "", true},
		{"NVML was asked for", func(c *config) { c.source = sourceNVML }, "", true},
		{"told to wait", func(c *config) { c.healthSocket = "" }, "flags: {failOnInitError: false}", false},
	} {
		s := newStage(t, c.change)
		s.takeLook(failed)
		if s.fatal() != nil {
			t.Errorf("%s: ended before the config was known", c.name)
		}
		if s.config(c.file); (s.fatal() != nil) != c.ends {
			t.Errorf("%s: %v", c.name, s.fatal())
		}
		if s.look(1); s.fatal() != nil {
			t.Errorf("%s: ended although GPUs were read", c.name)
		}
		if s.takeLook(failed); s.fatal() != nil {
			t.Errorf("%s: ended because the driver went away later", c.name)
		}
	}
}

func TestWhatThePlanCannotDoIsCounted(t *testing.T) {
	s := newStage(t, func(c *config) { c.healthSocket = "" }).
		config("sharing: {timeSlicing: {resources: [{name: gpu, devices: [7], replicas: 2}]}}").look(1)
	st := s.status.Load()
	if st.problems[deviceplugin.ProblemSelection] == 0 || len(st.wanted) != 1 || st.wanted[0] != "nvidia.com/gpu" {
		t.Errorf("problems %v, resources %v", st.problems, st.wanted)
	}
	if s.config("version: v1"); len(s.status.Load().problems) != 0 {
		t.Errorf("problems stay: %v", s.status.Load().problems)
	}
}

func TestTopologyHintsCanBeLeftOut(t *testing.T) {
	s := newStage(t, func(c *config) { c.noTopology, c.healthSocket = true, "" }).config("").look(1)
	if !s.to.last(t).Settings.NoTopology {
		t.Error("--no-topology is lost")
	}
}

func TestARestartWithoutTheExporterKeepsItsVerdicts(t *testing.T) {
	dir := t.TempDir()
	stream := func(c *config) { c.source = sourceStream }
	s := newStage(t, stream)
	held, _, err := openHeld(dir)
	if err != nil {
		t.Fatal(err)
	}
	s.keepList = func(l *healthstream.List) {
		if err := held.save(l); err != nil {
			t.Error(err)
		}
	}
	s.config("").list(listOf(healthy, unhealthy))

	again := newStage(t, stream)
	if _, again.director.stream.list, err = openHeld(dir); err != nil {
		t.Fatal(err)
	}
	again.config("")
	if got := again.handed(2); got != "healthy unhealthy" || again.status.Load().verdicts != verdictHeld {
		t.Errorf("after the restart: %s by %s", got, again.status.Load().verdicts)
	}
}

func TestAClearingReachesTheOwnEngine(t *testing.T) {
	s := newStage(t, nil).config("").look(1, xidOn("GPU-0", 79, noon))
	list := listOf(healthy)
	list.Report.Clearings = []health.Clearing{{Device: "GPU-0", Reason: "checked", By: "ops", Time: noon.Add(time.Second)}}
	s.list(list).pass(2 * time.Second).look(1).lose().look(1)
	if got := s.handed(1); got != "healthy" {
		t.Errorf("after the operator's word and the loss of the stream: %s", got)
	}
}

func TestAFactOfThePluginItselfWithdrawsAGPUWithoutAnExporter(t *testing.T) {
	s := newStage(t, func(c *config) { c.healthSocket = "" }).config("").look(2)
	s.takeFacts(factsRead{"mps", []health.Fact{{GPU: "GPU-1", Kind: health.KindMPSDown, Class: health.ClassReset, Text: "down"}}})
	if got := s.pass(time.Second).look(2).handed(2); got != "healthy unhealthy" {
		t.Errorf("with a dead MPS daemon: %s", got)
	}
}

func TestDevicesWithoutNodesAreTold(t *testing.T) {
	const cdi = "flags: {plugin: {deviceListStrategy: cdi-cri}}"
	var logged bytes.Buffer
	s := newStage(t, func(c *config) { c.healthSocket = "" })
	if s.config(cdi).look(2); s.status.Load().problems[deviceplugin.ProblemNodes] != 2 {
		t.Errorf("the machine's own: problems %v", s.status.Load().problems)
	}
	s = newStage(t, func(c *config) { c.source = sourceStream })
	s.log = slog.New(slog.NewTextHandler(&logged, nil))
	s.config(cdi).list(listOf(healthy, healthy)).pass(surveyPause).pass(surveyPause)
	if n := strings.Count(logged.String(), "have no device nodes"); n != 1 || len(s.status.Load().problems) > 0 {
		t.Errorf("the stream's: %d lines, problems %v", n, s.status.Load().problems)
	}
}

func TestWhatTheKernelDoesNotTellIsOneLine(t *testing.T) {
	var logged bytes.Buffer
	s := newStage(t, nil)
	s.log = slog.New(slog.NewTextHandler(&logged, nil))
	s.survey = func(d []deviceplugin.Device, _ []deviceplugin.Link) (deviceplugin.Inventory, []error) {
		var problems []error
		for _, each := range d {
			problems = append(problems, fmt.Errorf("no NUMA node for %s", each.UUID))
		}
		return deviceplugin.Inventory{Devices: d}, problems
	}
	s.config("").look(8)
	for range 3 {
		s.pass(surveyPause).look(8)
	}
	if n := strings.Count(logged.String(), "the kernel does not tell"); n != 1 || !strings.Contains(logged.String(), "facts=8") {
		t.Errorf("%d lines:\n%s", n, logged.String())
	}
	s.pass(surveyPause).look(9)
	if !strings.Contains(logged.String(), "facts=1 ") {
		t.Errorf("a new device is not told of:\n%s", logged.String())
	}
}

func TestAnIMEXChannelCountsWhereverItIsSeen(t *testing.T) {
	host, driver := t.TempDir(), t.TempDir()
	for folder, name := range map[string]string{host: "channel3", driver: "channel0"} {
		if err := os.MkdirAll(filepath.Join(folder, "dev/nvidia-caps-imex-channels"), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(folder, "dev/nvidia-caps-imex-channels", name), "")
	}
	c := defaults()
	c.hostRoot = host
	for root, want := range map[string][]int{driver: {0, 3}, "/nowhere": {3}, host: {3}} {
		e := mustEffective(t, nil, map[string]string{"DRIVER_ROOT_CTR_PATH": root}, "")
		if inv, _ := surveyed(c, e, nil, nil); !slices.Equal(inv.IMEXChannels, want) {
			t.Errorf("with the driver root in %s: %v, want %v", root, inv.IMEXChannels, want)
		}
	}
}
