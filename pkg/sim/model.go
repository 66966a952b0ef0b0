// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// model is a kind of card: what the driver says of it and how it behaves.
type model struct {
	// key is the short name in scenarios, product the driver's name.
	key, product string
	memoryMiB    int
	reservedMiB  int
	// powerLimit and idle are in watts, clocks in MHz.
	powerLimit, idle             float64
	smClock, idleClock, memClock int
	sms                          int
	// computeMajor and computeMinor are the CUDA compute capability, 0 where it is not known.
	computeMajor, computeMinor int
	// nvlinks is how many NVLinks the card has.
	nvlinks  int
	capacity gpu.Slices
	profiles []gpu.MIGProfile
	// instanceMiB is the memory of an instance of each profile.
	instanceMiB map[string]int
}

// usualLinks is how many NVLinks a card has of which it is only known that it has some.
const usualLinks = 18

// row is what differs between the cards of one MIG geometry.
type row struct {
	name     string
	sms, mib int
}

// sevenEighths is the geometry of the data-centre cards since Ampere: seven
// compute slices over eight memory slices.
func (m model) sevenEighths(one, oneDouble, two, three, four, seven row) model {
	m.capacity = gpu.Slices{Compute: 7, Memory: 8, SMs: seven.sms}
	m.addProfile(one, gpu.MIGProfile{Slices: gpu.Slices{Compute: 1, Memory: 1}, Max: 7, Starts: []int{0, 1, 2, 3, 4, 5, 6}})
	m.addProfile(row{one.name + "+me", one.sms, one.mib}, gpu.MIGProfile{
		Slices: gpu.Slices{Compute: 1, Memory: 1}, Max: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Exclusive: "me",
	})
	m.addProfile(oneDouble, gpu.MIGProfile{Slices: gpu.Slices{Compute: 1, Memory: 2}, Max: 4, Starts: []int{0, 2, 4, 6}})
	m.addProfile(two, gpu.MIGProfile{Slices: gpu.Slices{Compute: 2, Memory: 2}, Max: 3, Starts: []int{0, 2, 4}})
	m.addProfile(three, gpu.MIGProfile{Slices: gpu.Slices{Compute: 3, Memory: 4}, Max: 2, Starts: []int{0, 4}})
	m.addProfile(four, gpu.MIGProfile{Slices: gpu.Slices{Compute: 4, Memory: 4}, Max: 1, Starts: []int{0}})
	m.addProfile(seven, gpu.MIGProfile{Slices: gpu.Slices{Compute: 7, Memory: 8}, Max: 1, Starts: []int{0}})
	return m
}

// fourFourths is the geometry of the smaller cards: four slices of each.
func (m model) fourFourths(one, two, four row, variants map[string][]string) model {
	m.capacity = gpu.Slices{Compute: 4, Memory: 4, SMs: four.sms}
	for _, size := range []struct {
		row
		slices int
		starts []int
	}{
		{one, 1, []int{0, 1, 2, 3}},
		{two, 2, []int{0, 2}},
		{four, 4, []int{0}},
	} {
		for _, suffix := range append([]string{""}, variants[size.name]...) {
			p := gpu.MIGProfile{
				Slices: gpu.Slices{Compute: size.slices, Memory: size.slices},
				Max:    len(size.starts), Starts: size.starts,
			}
			if strings.HasPrefix(suffix, "+me") {
				p.Max, p.Exclusive = 1, "me"
			}
			m.addProfile(row{size.name + suffix, size.sms, size.mib}, p)
		}
	}
	return m
}

func (m *model) addProfile(r row, p gpu.MIGProfile) {
	p.Name, p.SMs, p.Size = r.name, r.sms, p.Memory
	m.profiles = append(m.profiles, p)
	if m.instanceMiB == nil {
		m.instanceMiB = map[string]int{}
	}
	m.instanceMiB[r.name] = r.mib
}

// profile finds a MIG profile by name.
func (m *model) profile(name string) (gpu.MIGProfile, bool) {
	i := slices.IndexFunc(m.profiles, func(p gpu.MIGProfile) bool { return p.Name == name })
	if i < 0 {
		return gpu.MIGProfile{}, false
	}
	return m.profiles[i], true
}

func (m *model) profileNames() []string {
	names := make([]string, len(m.profiles))
	for i, p := range m.profiles {
		names[i] = p.Name
	}
	return names
}

// builtinModels are the cards a scenario can name. Counts of multiprocessors that
// no public listing of a real card states are zero, which is unknown.
func builtinModels() []model {
	return []model{
		model{
			key: "A30-24", product: "NVIDIA A30", memoryMiB: 24576, reservedMiB: 506,
			powerLimit: 165, idle: 28, smClock: 1440, idleClock: 210, memClock: 1215, sms: 56, computeMajor: 8,
		}.fourFourths(row{"1g.6gb", 14, 5836}, row{"2g.12gb", 28, 11673}, row{"4g.24gb", 56, 23347},
			map[string][]string{"1g.6gb": {"+me"}, "2g.12gb": {"+me"}}),
		model{
			key: "A100-SXM4-40GB", product: "NVIDIA A100-SXM4-40GB", memoryMiB: 40960, reservedMiB: 518,
			powerLimit: 400, idle: 45, smClock: 1410, idleClock: 210, memClock: 1215, sms: 108, computeMajor: 8, nvlinks: 12,
		}.sevenEighths(row{"1g.5gb", 14, 4864}, row{"1g.10gb", 14, 9830}, row{"2g.10gb", 28, 9830},
			row{"3g.20gb", 42, 19968}, row{"4g.20gb", 56, 19968}, row{"7g.40gb", 98, 40140}),
		model{
			key: "A100-SXM4-80GB", product: "NVIDIA A100-SXM4-80GB", memoryMiB: 81920, reservedMiB: 658,
			powerLimit: 400, idle: 52, smClock: 1410, idleClock: 210, memClock: 1593, sms: 108, computeMajor: 8, nvlinks: 12,
		}.sevenEighths(row{"1g.10gb", 14, 9830}, row{"1g.20gb", 14, 19968}, row{"2g.20gb", 28, 19968},
			row{"3g.40gb", 42, 40140}, row{"4g.40gb", 56, 40140}, row{"7g.80gb", 98, 80384}),
		model{
			key: "H100-80", product: "NVIDIA H100 80GB HBM3", memoryMiB: 81559, reservedMiB: 551,
			powerLimit: 700, idle: 71, smClock: 1980, idleClock: 345, memClock: 2619, sms: 132, computeMajor: 9, nvlinks: 18,
		}.sevenEighths(row{"1g.10gb", 16, 9984}, row{"1g.20gb", 26, 20096}, row{"2g.20gb", 32, 20096},
			row{"3g.40gb", 60, 40448}, row{"4g.40gb", 64, 40448}, row{"7g.80gb", 132, 81008}),
		model{
			key: "H200-141", product: "NVIDIA H200", memoryMiB: 143771, reservedMiB: 619,
			powerLimit: 700, idle: 76, smClock: 1980, idleClock: 345, memClock: 3201, sms: 132, computeMajor: 9, nvlinks: 18,
		}.sevenEighths(row{"1g.18gb", 16, 16384}, row{"1g.35gb", 26, 33024}, row{"2g.35gb", 32, 33024},
			row{"3g.71gb", 60, 71168}, row{"4g.71gb", 64, 71168}, row{"7g.141gb", 132, 143152}),
		model{
			key: "B200", product: "NVIDIA B200", memoryMiB: 183359, reservedMiB: 717,
			powerLimit: 1000, idle: 140, smClock: 1965, idleClock: 120, memClock: 3996, sms: 148, computeMajor: 10, nvlinks: 18,
		}.sevenEighths(row{"1g.23gb", 18, 20992}, row{"1g.45gb", 30, 45312}, row{"2g.45gb", 36, 45312},
			row{"3g.90gb", 0, 91136}, row{"4g.90gb", 0, 91136}, row{"7g.180gb", 0, 182642}),
		model{
			key: "RTX-PRO-6000", product: "NVIDIA RTX PRO 6000 Blackwell Server Edition", memoryMiB: 97887, reservedMiB: 637,
			powerLimit: 600, idle: 33, smClock: 2430, idleClock: 180, memClock: 12481, sms: 188, computeMajor: 12,
		}.fourFourths(row{"1g.24gb", 46, 24166}, row{"2g.48gb", 94, 48538}, row{"4g.96gb", 188, 97250},
			map[string][]string{
				"1g.24gb": {"+me", "+gfx", "+me.all", "-me"},
				"2g.48gb": {"+gfx", "+me.all", "-me"},
				"4g.96gb": {"+gfx"},
			}),
	}
}

// Models are the short names of the cards that a scenario can use without
// describing them; the driver's product name is accepted too.
func Models() []string {
	var names []string
	for _, m := range builtinModels() {
		names = append(names, m.key)
	}
	return names
}

// is reports whether a scenario's word means this model: its short name or its
// product name, with or without the maker's.
func (m *model) is(word string) bool {
	return strings.EqualFold(word, m.key) || strings.EqualFold(word, m.product) ||
		strings.EqualFold("NVIDIA "+word, m.product)
}
