// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func policy(t testing.TB, name string) Policy {
	t.Helper()
	p, err := ParsePolicy(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func fraction(t testing.TB, text string) Fraction {
	t.Helper()
	f, err := ParseFraction(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func table(t testing.TB, weights map[string]string) Policy {
	t.Helper()
	fractions := make(map[string]Fraction)
	for name, w := range weights {
		fractions[name] = fraction(t, w)
	}
	p, err := NewTablePolicy(fractions)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// weightText is the weight as text, "unknown" where there is none.
func weightText(p Policy, card, mig gpu.Device) string {
	w, ok := p.Weight(card, mig)
	if !ok {
		return "unknown"
	}
	return w.String()
}

func TestWeightsOfWholeGPUInstances(t *testing.T) {
	for _, tt := range []struct {
		card                        gpu.Device
		profile                     string
		blend, compute, memory, sms string
	}{
		{h100("GPU-a", 0), "1g.10gb", "15/112", "1/7", "1/8", "4/33"},
		{h100("GPU-a", 0), "1g.10gb+me", "15/112", "1/7", "1/8", "4/33"},
		{h100("GPU-a", 0), "1g.20gb", "11/56", "1/7", "1/4", "13/66"},
		{h100("GPU-a", 0), "2g.20gb", "15/56", "2/7", "1/4", "8/33"},
		{h100("GPU-a", 0), "3g.40gb", "13/28", "3/7", "1/2", "5/11"},
		{h100("GPU-a", 0), "4g.40gb", "15/28", "4/7", "1/2", "16/33"},
		{h100("GPU-a", 0), "7g.80gb", "1", "1", "1", "1"},
		// The same name is another part of another card.
		{a100x80("GPU-a", 0), "1g.10gb", "15/112", "1/7", "1/8", "1/7"},
		{a100x40("GPU-a", 0), "1g.10gb", "11/56", "1/7", "1/4", "1/7"},
		{a30("GPU-a", 0), "1g.6gb+me", "1/4", "1/4", "1/4", "1/4"},
		{rtxPro6000("GPU-a", 0), "1g.24gb-me", "1/4", "1/4", "1/4", "23/94"},
		{rtxPro6000("GPU-a", 0), "4g.96gb+gfx", "1", "1", "1", "1"},
	} {
		mig := migDevice("MIG-a", tt.card, tt.profile, 1, 0, 0)
		for name, want := range map[string]string{"": tt.blend, "blend": tt.blend, "compute": tt.compute, "memory": tt.memory, "sm": tt.sms} {
			if got := weightText(policy(t, name), tt.card, mig); got != want {
				t.Errorf("policy %q: %s of %d slices weighs %s, want %s", name, tt.profile, tt.card.Capacity.Compute, got, want)
			}
		}
		if got := weightText(Policy{}, tt.card, mig); got != tt.blend {
			t.Errorf("the zero Policy: %s weighs %s, want blend's %s", tt.profile, got, tt.blend)
		}
	}
}

func TestComputeInstancesAddUpToTheirGPUInstance(t *testing.T) {
	parent := h100("GPU-a", 0)
	whole := migDevice("MIG-a", parent, "3g.40gb", 1, 4, 0)
	one, two := migDevice("MIG-b", parent, "3g.40gb", 1, 4, 1), migDevice("MIG-c", parent, "3g.40gb", 1, 4, 2)
	for _, p := range []Policy{policy(t, "blend"), policy(t, "compute"), policy(t, "memory"), policy(t, "sm"), table(t, map[string]string{"3g.40gb": "0.45"})} {
		w, _ := p.Weight(parent, whole)
		a, okA := p.Weight(parent, one)
		b, okB := p.Weight(parent, two)
		if !okA || !okB || !a.Add(b).Equal(w) || !a.Equal(w.Scale(1, 3)) {
			t.Errorf("policy %s: 1c %s and 2c %s of a GPU instance of %s", p.Name(), a, b, w)
		}
	}
	own := table(t, map[string]string{"3g.40gb": "0.45", "1c.3g.40gb": "0.1"})
	if got := weightText(own, parent, one); got != "1/10" {
		t.Errorf("1c.3g.40gb with a weight of its own weighs %s, want 1/10", got)
	}
	if got := weightText(own, parent, two); got != "3/10" {
		t.Errorf("2c.3g.40gb weighs %s, want 3/10", got)
	}
}

func TestUnknownWeights(t *testing.T) {
	parent := h100("GPU-a", 0)
	good := migDevice("MIG-a", parent, "3g.40gb", 1, 4, 0)
	for _, tt := range []struct {
		what   string
		change func(card, mig *gpu.Device)
		known  string
	}{
		{"nothing missing", func(_, _ *gpu.Device) {}, "blend compute memory sm"},
		{"capacity zero", func(c, _ *gpu.Device) { c.Capacity = gpu.Slices{} }, ""},
		{"multiprocessors of the card unknown", func(c, _ *gpu.Device) { c.Capacity.SMs = 0 }, "blend compute memory"},
		{"multiprocessors of the device unknown", func(_, m *gpu.Device) { m.Profile.ComputeInstanceSMs = 0 }, "blend compute memory"},
		{"memory of the device unknown", func(_, m *gpu.Device) { m.Profile.Memory = 0 }, "compute sm"},
		{"memory of the card unknown", func(c, _ *gpu.Device) { c.Capacity.Memory = 0 }, "compute sm"},
		{"compute slices unknown", func(_, m *gpu.Device) { m.Profile.ComputeInstanceSlices = 0 }, "sm"},
		{"compute instance larger than its GPU instance", func(_, m *gpu.Device) { m.Profile.ComputeInstanceSlices = 4 }, "sm"},
		{"more than the card", func(c, _ *gpu.Device) { c.Capacity = gpu.Slices{Compute: 2, Memory: 2, SMs: 10} }, ""},
		{"negative", func(_, m *gpu.Device) { m.Profile.Memory, m.Profile.ComputeInstanceSMs = -4, -1 }, "compute"},
	} {
		c, m := parent, good
		tt.change(&c, &m)
		var known []string
		for _, name := range []string{"blend", "compute", "memory", "sm"} {
			if weightText(policy(t, name), c, m) != "unknown" {
				known = append(known, name)
			}
		}
		if got := strings.Join(known, " "); got != tt.known {
			t.Errorf("%s: weight known to %q, want %q", tt.what, got, tt.known)
		}
	}
}

func TestPolicyNames(t *testing.T) {
	for _, name := range []string{"blend", "compute", "memory", "sm"} {
		if got := policy(t, name).Name(); got != name {
			t.Errorf("policy %s is called %s", name, got)
		}
	}
	for _, name := range []string{"table", "max", "Blend", "blend "} {
		if _, err := ParsePolicy(name); err == nil || !strings.Contains(err.Error(), `policy "`+name+`"`) {
			t.Errorf("ParsePolicy(%q): error %v does not name it", name, err)
		}
	}
}

func TestTablePolicy(t *testing.T) {
	weights := map[string]Fraction{
		"1g.10gb": fraction(t, "0.1"), "NVIDIA H100:1g.10gb": fraction(t, "1/5"), "NVIDIA H100:2g.20gb": fraction(t, "2/5"),
	}
	p, err := NewTablePolicy(weights)
	if err != nil {
		t.Fatal(err)
	}
	weights["1g.10gb"] = One()
	a, b := a100x80("GPU-a", 0), h100("GPU-b", 1)
	b.Model = "NVIDIA H100"
	if p.Name() != "table" {
		t.Errorf("the name is %s", p.Name())
	}
	for _, tt := range []struct {
		card          gpu.Device
		profile, want string
	}{
		{a, "1g.10gb", "1/10"},
		{b, "1g.10gb", "1/5"},
		{b, "2g.20gb", "2/5"},
		{a, "2g.20gb", "unknown"},
		{a, "1g.10gb+me", "unknown"},
	} {
		if got := weightText(p, tt.card, migDevice("MIG-a", tt.card, tt.profile, 1, 0, 0)); got != tt.want {
			t.Errorf("%s of %s weighs %s, want %s", tt.profile, tt.card.Model, got, tt.want)
		}
	}
}

func TestTableWithAnImpossibleWeightIsRefused(t *testing.T) {
	for key, w := range map[string]Fraction{
		"1g.10gb": {}, "2g.20gb": NewFraction(-1, 2), "3g.40gb": NewFraction(101, 100), "": One(), "NVIDIA H100:": One(),
	} {
		if _, err := NewTablePolicy(map[string]Fraction{key: w}); err == nil || !strings.Contains(err.Error(), `"`+key+`"`) {
			t.Errorf("weight %s of %q: error %v does not name it", w, key, err)
		}
	}
	if _, err := NewTablePolicy(nil); err == nil {
		t.Error("an empty table is a policy")
	}
}

func TestInstanceName(t *testing.T) {
	for name, want := range map[string]string{
		"1c.3g.40gb": "3g.40gb", "3g.40gb": "3g.40gb", "12c.x": "x", "c.3g": "c.3g", "1g.10gb+me": "1g.10gb+me", "": "", "1c": "1c",
	} {
		if got := instanceName(name); got != want {
			t.Errorf("GPU instance of %q is %q, want %q", name, got, want)
		}
	}
}
