// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

const (
	defaultDomain  = "nvidia.com/"
	defaultGPUName = defaultDomain + "gpu"
	sharedSuffix   = ".shared"
	// maxNameLength is what NVIDIA's plugin allows a resource name in all; Kubernetes allows
	// more, but not the labels that are made from it.
	maxNameLength = 63
)

// DefaultName is the resource of a MIG profile that no rule names: "1g.10gb+me" is
// "nvidia.com/mig-1g.10gb.me".
func DefaultName(profile string) string {
	return defaultDomain + "mig-" + strings.ReplaceAll(profile, "+", ".")
}

// FullName is the name with the domain nvidia.com if it has none, checked: Kubernetes must
// accept it as an extended resource.
func FullName(name string) (string, error) {
	if !strings.Contains(name, "/") {
		name = defaultDomain + name
	}
	if err := checkName(name); err != nil {
		return "", fmt.Errorf("resource name %q: %w", name, err)
	}
	return name, nil
}

func checkName(name string) error {
	domain, base, _ := strings.Cut(name, "/")
	switch {
	case len(name) > maxNameLength:
		return fmt.Errorf("has %d characters, the limit is %d", len(name), maxNameLength)
	case !isDomain(domain):
		return fmt.Errorf("%q is no DNS domain in small letters", domain)
	case !between(base, isAlphanumeric, "-_."):
		return errors.New("after the slash only letters and digits, and between them - _ . are possible")
	case domain == "kubernetes.io", strings.HasSuffix(domain, ".kubernetes.io"):
		return errors.New("the domain kubernetes.io is kept for Kubernetes")
	case strings.HasPrefix(domain, "requests."):
		return errors.New("a domain that begins with requests. means a quota")
	}
	return nil
}

func isDomain(text string) bool {
	for label := range strings.SplitSeq(text, ".") {
		if !between(label, isLowerOrDigit, "-") {
			return false
		}
	}
	return true
}

// between says whether text begins and ends with what is allowed, and has in between only that
// and what is among the others.
func between(text string, allowed func(byte) bool, others string) bool {
	for i := range len(text) {
		inside := i > 0 && i < len(text)-1
		if !allowed(text[i]) && (!inside || strings.IndexByte(others, text[i]) < 0) {
			return false
		}
	}
	return text != ""
}

func isLowerOrDigit(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func isAlphanumeric(c byte) bool { return isLowerOrDigit(c) || c >= 'A' && c <= 'Z' }

// nameBy is the name that the first matching rule gives, or otherwise.
func nameBy(rules []NameRule, text, otherwise string) (string, error) {
	for _, r := range rules {
		if matches(r.Pattern, text) {
			return FullName(r.Name)
		}
	}
	return FullName(otherwise)
}

// matches says whether all of text is what the pattern says, where * is any text and ? any one
// character.
func matches(pattern, text string) bool {
	// Everything else that path.Match knows is plain text here, also the slash.
	quote := strings.NewReplacer(`\`, `\\`, `[`, `\[`, "/", "\x00").Replace
	ok, err := path.Match(quote(pattern), strings.ReplaceAll(text, "/", "\x00"))
	return ok && err == nil
}
