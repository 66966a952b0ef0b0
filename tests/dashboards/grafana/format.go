// SPDX-License-Identifier: Apache-2.0

package grafana

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// scaled is a unit whose prefix grows with the value.
type scaled struct {
	base    float64
	first   int
	suffix  []string
	spaced  bool
	postfix string
}

// scaledUnits are the units with prefixes.
func scaledUnits() map[string]scaled {
	binary := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	decimal := []string{"B", "kB", "MB", "GB", "TB", "PB"}
	si := func(unit string) []string { return []string{unit, "k" + unit, "M" + unit, "G" + unit, "T" + unit} }
	return map[string]scaled{
		"bytes": {1024, 0, binary, true, ""}, "kbytes": {1024, 1, binary, true, ""}, "mbytes": {1024, 2, binary, true, ""}, "gbytes": {1024, 3, binary, true, ""},
		"decbytes": {1000, 0, decimal, true, ""}, "decmbytes": {1000, 2, decimal, true, ""},
		"Bps": {1000, 0, decimal, true, "/s"}, "binBps": {1024, 0, binary, true, "/s"}, "MBs": {1000, 2, decimal, true, "/s"}, "KBs": {1000, 1, decimal, true, "/s"}, "MiBs": {1024, 2, binary, true, "/s"},
		"watt": {1000, 0, si("W"), true, ""}, "kwatt": {1000, 1, si("W"), true, ""}, "joule": {1000, 0, si("J"), true, ""},
		"watth": {1000, 0, si("Wh"), true, ""}, "kwatth": {1000, 1, si("Wh"), true, ""},
		"hertz": {1000, 0, si("Hz"), true, ""}, "rotmhz": {1000, 2, si("Hz"), true, ""}, "mhertz": {1000, 2, si("Hz"), true, ""},
		"short": {1000, 0, []string{"", " K", " Mil", " Bil", " Tri"}, false, ""},
		"ops":   {1000, 0, si(""), false, " ops/s"}, "reqps": {1000, 0, si(""), false, " req/s"}, "cps": {1000, 0, si(""), false, " c/s"},
	}
}

// Known says whether the unit is one that Format writes. Grafana takes any other word as a suffix, which a typo would become.
func Known(unit string) bool {
	if _, ok := scaledUnits()[unit]; ok || strings.HasPrefix(unit, "suffix:") || strings.HasPrefix(unit, "prefix:") || strings.HasPrefix(unit, "currency") {
		return true
	}
	switch unit {
	case "", "none", "string", "percentunit", "percent", "celsius", "s", "ms", "m", "h", "d", "dtdurations", "dtdhms", "bool", "bool_yes_no", "bool_on_off",
		"dateTimeFromNow", "dateTimeAsIso", "dateTimeAsLocal", "dateTimeAsSystem", "dateTimeAsUS", "locale", "sci":
		return true
	}
	return false
}

// Format is a value as Grafana writes it with a unit. Now is for units that speak of it.
func Format(unit string, decimals *int, v float64, now time.Time) string {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 0):
		return strings.TrimPrefix(fmt.Sprint(v), "+")
	}
	if s, ok := scaledUnits()[unit]; ok {
		return s.format(v, decimals)
	}
	if suffix, ok := strings.CutPrefix(unit, "suffix:"); ok {
		return number(v, decimals) + suffix
	}
	if prefix, ok := strings.CutPrefix(unit, "prefix:"); ok {
		return prefix + number(v, decimals)
	}
	if currency, ok := strings.CutPrefix(unit, "currency"); ok {
		return money(currency, v, decimals)
	}
	switch unit {
	case "percentunit":
		return number(v*100, decimals) + "%"
	case "percent":
		return number(v, decimals) + "%"
	case "celsius":
		return number(v, decimals) + " °C"
	case "s", "ms", "m", "h", "d", "dtdurations", "dtdhms":
		factor := map[string]float64{"ms": 1e-3, "m": 60, "h": 3600, "d": 86400}[unit]
		if factor == 0 {
			factor = 1
		}
		return duration(v*factor, decimals)
	case "dateTimeFromNow":
		return ago(now.Sub(time.UnixMilli(int64(v))))
	case "dateTimeAsIso", "dateTimeAsLocal", "dateTimeAsSystem", "dateTimeAsUS":
		return time.UnixMilli(int64(v)).UTC().Format("2006-01-02 15:04:05")
	case "bool", "bool_yes_no", "bool_on_off":
		words := map[string][2]string{"bool": {"False", "True"}, "bool_yes_no": {"No", "Yes"}, "bool_on_off": {"Off", "On"}}[unit]
		if v != 0 {
			return words[1]
		}
		return words[0]
	case "", "none", "string", "locale", "sci":
		return number(v, decimals)
	default:
		return number(v, decimals) + " " + unit
	}
}

func money(currency string, v float64, decimals *int) string {
	sign := map[string]string{"USD": "$", "EUR": "€", "GBP": "£"}[currency]
	if sign == "" {
		sign = strings.TrimPrefix(currency, ":")
	}
	suffix := []string{"", "K", "M", "B"}
	i := 0
	for math.Abs(v) >= 1000 && i < len(suffix)-1 {
		v, i = v/1000, i+1
	}
	return sign + number(v, decimals) + suffix[i]
}

func (s scaled) format(v float64, decimals *int) string {
	i := s.first
	if v != 0 {
		for math.Abs(v) >= s.base && i < len(s.suffix)-1 {
			v, i = v/s.base, i+1
		}
		for math.Abs(v) < 1 && i > 0 {
			v, i = v*s.base, i-1
		}
	}
	space := ""
	if s.spaced {
		space = " "
	}
	return number(v, decimals) + space + s.suffix[i] + s.postfix
}

// number is a value with the decimals that are asked for, or as many as it takes to tell it.
func number(v float64, decimals *int) string {
	if decimals != nil {
		return strconv.FormatFloat(v, 'f', *decimals, 64)
	}
	a := math.Abs(v)
	digits := 0
	switch {
	case a == math.Trunc(a):
	case a < 0.01:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case a < 1:
		digits = 3
	case a < 10:
		digits = 2
	case a < 1000:
		digits = 1
	}
	out := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(out, ".") {
		out = strings.TrimRight(strings.TrimRight(out, "0"), ".")
	}
	return out
}

// duration is seconds in the largest unit that they fill.
func duration(v float64, decimals *int) string {
	a := math.Abs(v)
	for _, u := range []struct {
		per  float64
		name string
	}{{604800, "weeks"}, {86400, "days"}, {3600, "hours"}, {60, "mins"}, {1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}} {
		if a >= u.per {
			return number(v/u.per, decimals) + " " + u.name
		}
	}
	return number(v, decimals) + " s"
}

func ago(d time.Duration) string {
	form := "%s ago"
	if d < 0 {
		d, form = -d, "in %s"
	}
	words := func(n int, unit string) string {
		if n == 1 {
			return "1 " + unit
		}
		return fmt.Sprintf("%d %ss", n, unit)
	}
	switch {
	case d < 45*time.Second:
		return fmt.Sprintf(form, "a few seconds")
	case d < 90*time.Minute:
		return fmt.Sprintf(form, words(max(1, int(d.Minutes()+0.5)), "minute"))
	case d < 36*time.Hour:
		return fmt.Sprintf(form, words(int(d.Hours()+0.5), "hour"))
	default:
		return fmt.Sprintf(form, words(int(d.Hours()/24+0.5), "day"))
	}
}
