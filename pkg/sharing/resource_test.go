// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"regexp"
	"strings"
	"testing"
)

func TestDefaultResourcesAreNVIDIAsGPUs(t *testing.T) {
	r, err := NewResources(DefaultResourcePatterns()...)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"nvidia.com/gpu":                  true,
		"nvidia.com/gpu.shared":           true,
		"nvidia.com/mig-1g.10gb":          true,
		"nvidia.com/mig-1g.10gb.me":       true,
		"nvidia.com/mig-1g.24gb-me":       true,
		"nvidia.com/mig-3g.20gb.shared":   true,
		"nvidia.com/a100.shared":          true,
		"nvidia.com/gpumem":               false,
		"nvidia.com/gpu.product":          false,
		"nvidia.com/":                     false,
		"nvidia.com/shared":               false,
		"xnvidia.com/gpu":                 false,
		"nvidia.com/gpu ":                 false,
		"amd.com/gpu":                     false,
		"":                                false,
		"nvidia.com/NVIDIA_A100X_VGPU-4C": false,
	} {
		if got := r.Match(name); got != want {
			t.Errorf("Match(%q) = %t", name, got)
		}
	}
}

func TestNamesWithoutAStarMatchThemselves(t *testing.T) {
	r, err := NewResources("example.com/tesla-a100", "example.com/v100")
	if err != nil {
		t.Fatal(err)
	}
	if !r.Match("example.com/tesla-a100") || r.Match("example.com/tesla-a1000") || r.Match("example.com/tesla-a10") || r.Match("nvidia.com/gpu") {
		t.Errorf("%s does not match exactly its own names", r)
	}
	if (Resources{}).Match("nvidia.com/gpu") {
		t.Error("the zero Resources matches nvidia.com/gpu")
	}
}

func TestPatternsAreNotKeptByReference(t *testing.T) {
	patterns := []string{"nvidia.com/gpu"}
	r, err := NewResources(patterns...)
	if err != nil {
		t.Fatal(err)
	}
	patterns[0] = "*"
	if r.Match("cpu") {
		t.Error("a changed argument changed the matcher")
	}
}

func TestAnImpossiblePatternIsNamed(t *testing.T) {
	for _, p := range []string{"", "nvidia.com/gpu?", "nvidia.com/[a-z]", "nvidia.com/gpu,nvidia.com/mig-*", "a/b/c", "nvidia.com/ gpu", strings.Repeat("a", 400)} {
		_, err := NewResources("nvidia.com/gpu", p)
		if err == nil || !strings.Contains(err.Error(), `resource pattern "`+p+`"`) {
			t.Errorf("NewResources(%q): error %v does not name it", p, err)
		}
	}
}

func TestHostilePatternsTakeNoTime(t *testing.T) {
	r, err := NewResources(strings.Repeat("*a", 100) + "b")
	if err != nil {
		t.Fatal(err)
	}
	// A matcher that tried every way for every star would not come back.
	if r.Match(strings.Repeat("a", 100_000)) {
		t.Error("a name without b matched")
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("nvidia.com/*.shared", "nvidia.com/gpu.shared")
	f.Add("*", "")
	f.Add("a*b*c", "abbc")
	f.Add("**a", "aaba")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		r, err := NewResources(pattern)
		if err != nil {
			return
		}
		want := regexp.MustCompile(`(?s)\A` + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `.*`) + `\z`)
		if got := r.Match(name); got != want.MatchString(name) {
			t.Fatalf("%q matches %q: %t", pattern, name, got)
		}
	})
}
