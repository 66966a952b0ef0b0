// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"strconv"
	"strings"
)

// Origins of values that are in no file.
const originDefault = "default"

// chosen is an option's value with where it comes from: "--mig-strategy", "MIG_STRATEGY",
// "config.yaml:3:16" or "default".
type chosen struct {
	option
	words  []string
	origin string
}

// String is the value as it is shown.
func (c chosen) String() string {
	switch c.form {
	case list:
		return "[" + strings.Join(c.words, ", ") + "]"
	case boolean:
		on, _ := strconv.ParseBool(c.words[0])
		return strconv.FormatBool(on)
	default:
		return strconv.Quote(c.words[0])
	}
}

// values are all options' values.
type values []chosen

func (v values) get(name string) chosen {
	for _, c := range v {
		if c.name() == name {
			return c
		}
	}
	return chosen{words: []string{""}, origin: originDefault}
}

func (v values) text(name string) string   { return v.get(name).words[0] }
func (v values) list(name string) []string { return v.get(name).words }

func (v values) boolean(name string) bool {
	b, _ := strconv.ParseBool(v.text(name))
	return b
}

// lookup answers what was given under a name, if anything was.
type lookup func(name string) (string, bool)

// flagValues are the values of the flags that were given, by option.
type flagValues map[string][]string

// choose takes each option from the flag, else from the environment, else from the file, else its
// default. An error names the origin; a value that another one overrides is not looked at, but for
// the file's, which are checked when it is read.
func choose(flags flagValues, env lookup, file configFile) (values, []error) {
	var out values
	var problems []error
	for _, o := range options() {
		c := o.from(flags, env, file)
		if err := o.check(c.words); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", c.origin, err))
		}
		out = append(out, c)
	}
	return out, problems
}

func (o option) from(flags flagValues, env lookup, file configFile) chosen {
	if v, ok := flags[o.name()]; ok {
		return chosen{o, v, "--" + o.name()}
	}
	for _, name := range o.env {
		// Charts set variables to nothing to mean the default.
		if v, ok := env(name); ok && v != "" {
			return chosen{o, o.parts(v), name}
		}
	}
	if g, ok := file.values[o.key]; ok && o.key != "" {
		return chosen{o, g.value, g.at}
	}
	return chosen{o, o.parts(o.value), originDefault}
}

// parts are a value's words, as flags and environment variables write them.
func (o option) parts(value string) []string {
	if o.form != list {
		return []string{value}
	}
	out := []string{}
	for w := range strings.SplitSeq(value, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}
