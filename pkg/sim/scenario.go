// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"embed"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

//go:embed scenarios/*.yaml
var shipped embed.FS

// Scenario is the story of one pretend node: its GPUs, how they are shared, the
// pods that come and go, and what goes wrong when. It is immutable once parsed.
type Scenario struct {
	// Name is the file's name without its folder and ending.
	Name string
	// Description says in plain words what the scenario shows.
	Description string
	// Node is the node's name.
	Node string
	// Loop is how long one round of the story lasts; after it the story begins anew.
	// Zero is a story without an end, which stays as its last event left it.
	Loop time.Duration

	seed       uint64
	driver     string
	gkeIDs     bool
	cards      []cardSpec
	sharing    []sharingSpec
	pods       []podSpec
	events     []eventSpec
	background int
	processes  bool
	fields     map[gpu.FieldID]function
}

// cardSpec is one GPU.
type cardSpec struct {
	line  int
	model *model
	// mig says MIG mode is on; slots are the instances at the start.
	mig   bool
	slots []slot
	lost  bool
	numa  []int
	minor int
	// uuid and migUUIDs are given where a known machine is replayed; the seed gives the rest.
	uuid     string
	migUUIDs map[instance]string
	fields   map[gpu.FieldID]function
}

// sharingSpec hands out a resource's devices as replicas.
type sharingSpec struct {
	line     int
	resource string
	replicas int
	rename   bool
	strategy string
	gpus     []int
}

// advertised is the resource name that pods ask for.
func (s *sharingSpec) advertised() string {
	if s.rename {
		return s.resource + ".shared"
	}
	return s.resource
}

func (s *sharingSpec) covers(resource string, card int) bool {
	return s.resource == resource && (s.gpus == nil || slices.Contains(s.gpus, card))
}

// podSpec is a kind of pod, in copies, running once or again and again.
type podSpec struct {
	line                       int
	name, namespace, container string
	sidecars                   []string
	labels                     map[string]string
	resource                   string
	copies, count              int
	random                     bool
	start, stop                time.Duration
	every, jitter              time.Duration
	lifeLow, lifeHigh          time.Duration
	kind                       *loadKind
	level, memory              float64
	process                    string
}

// The verbs of events.
const (
	doXID              = "xid"
	doGPULost          = "gpu_lost"
	doGPUBack          = "gpu_back"
	doECC              = "ecc_dbe"
	doRepartition      = "repartition"
	doKubeletRestart   = "kubelet_restart"
	doKubeletSlow      = "kubelet_slow"
	doPluginAway       = "plugin_away"
	doReplicaUnhealthy = "replica_unhealthy"
	doHang             = "hang"
	doSlow             = "slow"
	doGPUGone          = "gpu_gone"
	doGPUReset         = "gpu_reset"
	doRecoveryAction   = "recovery_action"
	doRowRemap         = "row_remap"
	doRetiredPages     = "retired_pages"
	doSRAMThreshold    = "sram_threshold"
	doUnrepairable     = "memory_unrepairable"
	doNVLinkDown       = "nvlink_down"
	doSlowdown         = "slowdown"
	doIncident         = "incident"
	doReboot           = "reboot"
)

// eventSpec is one thing that happens to the node.
type eventSpec struct {
	line     int
	at, last time.Duration
	do       string
	gpu      int
	code     int
	// instance is NVML's id of a GPU instance, or gpu.NoInstance.
	instance int
	count    int
	replica  int
	delay    time.Duration
	resource string
	slots    []slot
	// word is what the verb takes as one: an action, a state, a reason or a system.
	word   string
	result gpu.HealthResult
	link   int
}

// Shipped are the names of the scenarios that come with the program, sorted.
func Shipped() []string {
	entries, err := shipped.ReadDir("scenarios")
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	slices.Sort(names)
	return names
}

// LoadShipped is a scenario that comes with the program.
func LoadShipped(name string) (*Scenario, error) {
	data, err := shipped.ReadFile(path.Join("scenarios", name+".yaml"))
	if err != nil {
		return nil, &unknownWordError{what: "scenario", word: name, known: Shipped()}
	}
	return Parse(name+".yaml", data)
}

// Load reads a scenario from a file.
func Load(file string) (*Scenario, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	return Parse(file, data)
}

// Summary says what the scenario holds, one line per fact, for people.
func (s *Scenario) Summary() []string {
	out := []string{fmt.Sprintf("node %s, driver %s, seed %d", s.Node, s.driver, s.seed)}
	for i := 0; i < len(s.cards); {
		j := i + 1
		for j < len(s.cards) && s.cards[j].words() == s.cards[i].words() {
			j++
		}
		span := fmt.Sprintf("GPU %d", i)
		if j-i > 1 {
			span = fmt.Sprintf("GPUs %d-%d", i, j-1)
		}
		out = append(out, span+": "+s.cards[i].words())
		i = j
	}
	for _, sh := range s.sharing {
		line := fmt.Sprintf("%s: %d replicas by %s", sh.advertised(), sh.replicas, sh.strategy)
		if sh.gpus != nil {
			line += fmt.Sprintf(", on GPUs %s", strings.Trim(fmt.Sprint(sh.gpus), "[]"))
		}
		out = append(out, line)
	}
	for i := range s.pods {
		out = append(out, s.pods[i].words())
	}
	if s.background > 0 {
		out = append(out, fmt.Sprintf("%d pods without a GPU", s.background))
	}
	for i := range s.events {
		out = append(out, s.events[i].words())
	}
	if s.Loop > 0 {
		out = append(out, fmt.Sprintf("after %s the story begins anew", brief(s.Loop)))
	}
	return out
}

func (c *cardSpec) words() string {
	w := c.model.product
	switch {
	case c.mig && len(c.slots) == 0:
		w += ", MIG on, no instances"
	case c.mig:
		w += ", MIG: " + layoutWords(c.slots)
	}
	if c.lost {
		w += ", lost"
	}
	return w
}

// layoutWords counts the instances of a layout, "1 x 3g.40gb + 2 x 1g.10gb".
func layoutWords(slots []slot) string {
	if len(slots) == 0 {
		return "no instances"
	}
	var words []string
	for i := 0; i < len(slots); {
		j := i + 1
		for j < len(slots) && slots[j].profile.Name == slots[i].profile.Name {
			j++
		}
		words = append(words, fmt.Sprintf("%d x %s", j-i, slots[i].profile.Name))
		i = j
	}
	return strings.Join(words, " + ")
}

// brief is a duration without its zero parts, "20m".
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (p *podSpec) words() string {
	w := fmt.Sprintf("%d x %s/%s: %d x %s, load %s", p.copies, p.namespace, p.name, p.count, p.resource, p.kind.name)
	if p.every > 0 {
		return w + fmt.Sprintf(", a new one every %s for %s to %s", brief(p.every), brief(p.lifeLow), brief(p.lifeHigh))
	}
	if p.start > 0 {
		w += fmt.Sprintf(", from %s", brief(p.start))
	}
	if p.stop > 0 {
		w += fmt.Sprintf(", until %s", brief(p.stop))
	}
	return w
}

func (e *eventSpec) words() string {
	w := fmt.Sprintf("at %s: %s", brief(e.at), e.do)
	if e.gpu >= 0 {
		w += fmt.Sprintf(" on GPU %d", e.gpu)
	}
	if e.code >= 0 {
		w += fmt.Sprintf(", code %d", e.code)
	}
	if e.word != "" {
		w += ", " + e.word
	}
	if e.link >= 0 {
		w += fmt.Sprintf(", link %d", e.link)
	}
	if e.instance != gpu.NoInstance {
		w += fmt.Sprintf(", GPU instance %d", e.instance)
	}
	if e.count > 1 {
		w += fmt.Sprintf(", %d times", e.count)
	}
	if e.do == doRepartition {
		w += " into " + layoutWords(e.slots)
	}
	if e.delay > 0 {
		w += fmt.Sprintf(", %s late", brief(e.delay))
	}
	if e.last > 0 {
		w += fmt.Sprintf(" for %s", brief(e.last))
	}
	return w
}
