// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import "strings"

// mostLabelText is how long the value of a label may be, and its name behind the slash.
const mostLabelText = 63

// product is what is sold: a model, and of a MIG device its profile.
type product struct{ model, profile string }

// product is a device's, zero where the model is not known.
func (l *features) product(d *Device) product {
	model := d.Model
	if d.IsMIG() {
		model = l.model[d.Parent]
	}
	if model == "" {
		return product{}
	}
	return product{model, d.Profile.Name}
}

// value is the product as a label's value with a suffix, empty where the model is not known. A model that is too long is
// cut, so that what follows it is told.
func (p product) value(suffix string) string {
	model := plainValue(p.model)
	if model == "" {
		return ""
	}
	if p.profile != "" {
		suffix = "-MIG-" + plainValue(strings.ReplaceAll(p.profile, "+", ".")) + suffix
	}
	return strings.TrimRight(model[:min(len(model), max(mostLabelText-len(suffix), 0))], "-_.") + suffix
}

// plainValue is foreign text as a label's value: what a value may not have is left out, blanks become dashes, and what is
// too long is cut.
func plainValue(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < 0x80 && (isAlphanumeric(byte(r)) || strings.ContainsRune("-_. ", r)) {
			return r
		}
		return -1
	}, text)
	text = strings.Join(strings.Fields(text), "-")
	text = text[:min(len(text), mostLabelText)]
	return strings.Trim(text, "-_.")
}

// validLabel says whether Kubernetes takes a label that says something.
func validLabel(name, value string) bool {
	domain, word, ok := strings.Cut(name, "/")
	return ok && isDomain(domain) && len(word) <= mostLabelText && between(word, isAlphanumeric, "-_.") &&
		len(value) <= mostLabelText && between(value, isAlphanumeric, "-_.")
}
