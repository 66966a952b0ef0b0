// SPDX-License-Identifier: Apache-2.0

package grafana

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Scope is what variables stand for.
type Scope struct {
	// Chosen are the values that a user has chosen of each of the dashboard's variables.
	Chosen map[string]Choice
	// From and To are the dashboard's time range, Interval the step of its graphs, Scrape the data source's scrape interval.
	From, To         time.Time
	Interval, Scrape time.Duration
}

// Choice is what a user has chosen of a variable.
type Choice struct {
	// List says that the variable can have several values or All, so that values are written as a pattern.
	List bool
	// Values are the chosen ones, as they are written where they are text; All is what stands for all of them, empty where it is not chosen.
	Values []string
	All    string
}

var reference = regexp.MustCompile(`\$(\w+)|\[\[(\w+?)(?::(\w+))?\]\]|\$\{(\w+)(?::(\w+))?\}`)

// Interpolate replaces the variables in a text. The error names one that is not known.
func (s Scope) Interpolate(text string) (string, error) {
	var unknown error
	out := reference.ReplaceAllStringFunc(text, func(ref string) string {
		m := reference.FindStringSubmatch(ref)
		name, format := m[1]+m[2]+m[4], m[3]+m[5]
		if v, ok := s.builtin(name); ok {
			return v
		}
		c, ok := s.Chosen[name]
		if _, err := strconv.Atoi(name); err == nil {
			return ref // A group of label_replace, which Grafana lets stand as well.
		}
		if !ok {
			unknown = fmt.Errorf("variable %s is not known", ref)
			return ref
		}
		v, err := c.written(format)
		if err != nil {
			unknown = fmt.Errorf("%s: %w", ref, err)
		}
		return v
	})
	return out, unknown
}

// builtin is what Grafana's own variables stand for.
func (s Scope) builtin(name string) (string, bool) {
	span := s.To.Sub(s.From)
	switch name {
	case "__rate_interval":
		return seconds(max(s.Interval+s.Scrape, 4*s.Scrape)), true
	case "__interval":
		return seconds(s.Interval), true
	case "__interval_ms":
		return strconv.FormatInt(s.Interval.Milliseconds(), 10), true
	case "__range":
		return seconds(span), true
	case "__range_s":
		return strconv.FormatInt(int64(span.Seconds()+0.5), 10), true
	case "__range_ms":
		return strconv.FormatInt(span.Milliseconds(), 10), true
	case "__from":
		return strconv.FormatInt(s.From.UnixMilli(), 10), true
	case "__to":
		return strconv.FormatInt(s.To.UnixMilli(), 10), true
	default:
		return "", false
	}
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d.Seconds()+0.5), 10) + "s" }

// written is a choice as a query has it.
func (c Choice) written(format string) (string, error) {
	if c.All != "" {
		return c.All, nil
	}
	switch format {
	case "":
		if !c.List {
			// Grafana escapes what would end a quoted text.
			return strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(strings.Join(c.Values, "")), nil
		}
		return c.pattern(`\\`), nil
	case "regex":
		return c.pattern(`\`), nil
	case "raw", "csv":
		return strings.Join(c.Values, ","), nil
	case "pipe":
		return strings.Join(c.Values, "|"), nil
	default:
		return "", fmt.Errorf("format %q is not known", format)
	}
}

// pattern is a regular expression for the values. In a query's quotes the escape itself is escaped.
func (c Choice) pattern(escape string) string {
	quoted := make([]string, len(c.Values))
	for i, v := range c.Values {
		quoted[i] = regexp.MustCompile(`[\\^$*+?.()|[\]{}/]`).ReplaceAllStringFunc(v, func(ch string) string {
			if ch == "/" && escape == `\\` {
				return ch
			}
			return escape + ch
		})
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return "(" + strings.Join(quoted, "|") + ")"
}

// Step is the interval of a graph: the time range over the points it has room for, rounded to what people read as Grafana rounds it, and no
// shorter than the least of the panel or the scrape interval.
func Step(span time.Duration, points int, least time.Duration) time.Duration {
	raw := span / time.Duration(max(points, 1))
	const day = 24 * time.Hour
	for _, s := range []struct{ below, step time.Duration }{
		{1500 * time.Millisecond, time.Second},
		{3500 * time.Millisecond, 2 * time.Second},
		{7500 * time.Millisecond, 5 * time.Second},
		{12500 * time.Millisecond, 10 * time.Second},
		{17500 * time.Millisecond, 15 * time.Second},
		{25 * time.Second, 20 * time.Second},
		{45 * time.Second, 30 * time.Second},
		{90 * time.Second, time.Minute},
		{210 * time.Second, 2 * time.Minute},
		{450 * time.Second, 5 * time.Minute},
		{750 * time.Second, 10 * time.Minute},
		{1050 * time.Second, 15 * time.Minute},
		{25 * time.Minute, 20 * time.Minute},
		{45 * time.Minute, 30 * time.Minute},
		{90 * time.Minute, time.Hour},
		{150 * time.Minute, 2 * time.Hour},
		{270 * time.Minute, 3 * time.Hour},
		{9 * time.Hour, 6 * time.Hour},
		{day, 12 * time.Hour},
		{7 * day, day},
	} {
		if raw < s.below {
			return max(s.step, least)
		}
	}
	return max(7*day, least)
}

// Moment is a time of a dashboard's time range, such as now-6h or now/M.
func Moment(text string, now time.Time) (time.Time, error) {
	m := regexp.MustCompile(`^now(?:-(\d+)([smhdwM]))?(?:/([hdwM]))?$`).FindStringSubmatch(text)
	if m == nil {
		return time.Time{}, fmt.Errorf("time %q: want now, now-6h or now/M", text)
	}
	now = now.UTC()
	if m[1] != "" {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return time.Time{}, fmt.Errorf("time %q: %w", text, err)
		}
		unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour}
		if m[2] == "M" {
			now = now.AddDate(0, -n, 0)
		} else {
			now = now.Add(-time.Duration(n) * unit[m[2]])
		}
	}
	year, month, day := now.Date()
	switch m[3] {
	case "h":
		now = now.Truncate(time.Hour)
	case "d":
		now = time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	case "w":
		now = time.Date(year, month, day-(int(now.Weekday())+6)%7, 0, 0, 0, 0, time.UTC)
	case "M":
		now = time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	}
	return now, nil
}
