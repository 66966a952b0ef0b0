// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/etc"
	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/xidfile"
)

// The environment variables of NVIDIA's plugin about XIDs.
const (
	envDisableXIDs = "DP_DISABLE_HEALTHCHECKS"
	envEnableXIDs  = "DP_ENABLE_HEALTHCHECKS"
)

// xidChoice is what NVIDIA's environment variables ask for.
type xidChoice struct {
	// ignoreAll and watchAll stand for every code.
	ignoreAll, watchAll bool
	ignore, watch       []int
}

// parseXIDChoice reads the two variables, strictly.
func parseXIDChoice(disable, enable string) (xidChoice, error) {
	var c xidChoice
	var errs []error
	read := func(variable, value string, all *bool, codes *[]int, words ...string) {
		for i, word := range strings.Split(value, ",") {
			word = strings.ToLower(strings.TrimSpace(word))
			code, err := strconv.Atoi(word)
			switch {
			case word == "":
			case slices.Contains(words, word):
				*all = true
			case err == nil && code >= 1 && code <= health.MaxXID:
				*codes = append(*codes, code)
			default:
				errs = append(errs, fmt.Errorf("%s: %q, number %d in the list, is no XID (write %s, or numbers from 1 to %d)",
					variable, word, i+1, either(words), health.MaxXID))
			}
		}
	}
	read(envDisableXIDs, disable, &c.ignoreAll, &c.ignore, "all", "xids")
	read(envEnableXIDs, enable, &c.watchAll, &c.watch, "all")
	return c, errors.Join(errs...)
}

// empty says that nothing is asked for.
func (c xidChoice) empty() bool {
	return !c.ignoreAll && !c.watchAll && len(c.ignore) == 0 && len(c.watch) == 0
}

// class is what a code asks for by the choice, which as with NVIDIA's plugin lets enabling win: one that is
// enabled withdraws its GPU, one that is disabled is for information.
func (c xidChoice) class(x health.XID) health.Class {
	enabled := c.watchAll || slices.Contains(c.watch, x.Code)
	disabled := c.ignoreAll || slices.Contains(c.ignore, x.Code)
	switch {
	case enabled:
		return max(x.Class, health.ClassReset)
	case disabled:
		return health.ClassInfo
	}
	return x.Class
}

// ownXIDs is the table of the plugin's own engine: the shipped one, with the rows of the operator's
// file, empty for none, changed by NVIDIA's environment variables. The notes are for the log.
func ownXIDs(file string, env lookup) (*health.XIDTable, []string, error) {
	table, err := xidfile.Load(etc.XIDs(), file)
	if err != nil {
		return nil, nil, fmt.Errorf("--xid-file: %w", err)
	}
	disable, _ := env(envDisableXIDs)
	enable, _ := env(envEnableXIDs)
	choice, err := parseXIDChoice(disable, enable)
	if err != nil {
		return nil, nil, err
	}
	if choice.empty() {
		return table, nil, nil
	}
	var rows []health.XID
	for code := 1; code <= health.MaxXID; code++ {
		x := table.Lookup(code)
		if class := choice.class(x); class != x.Class {
			x.Class, x.Repeat = class, health.Repeat{}
			x.Source = strings.TrimPrefix(x.Source+"+environment", "+")
			rows = append(rows, x)
		}
	}
	table, err = table.With(rows)
	if err != nil {
		return nil, nil, err
	}
	return table, []string{fmt.Sprintf("%s and %s change what XIDs mean to the plugin itself; where the exporter's health stream is there, its table decides (see --xid-file of the exporter)",
		envDisableXIDs, envEnableXIDs)}, nil
}
