// SPDX-License-Identifier: Apache-2.0

package dcgmsim_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	blankInt    = "9223372036854775792"
	blankDouble = "140737488355328"
)

func TestValuesComeGroupByGroupAndFieldByField(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100\nclock frozen")
	m.watched("1:1,1:0", "155,150,54")
	var order []string
	for _, v := range m.values("latest") {
		order = append(order, v.entity+" "+v.field+v.kind)
	}
	want := []string{"1:1 155d", "1:1 150i", "1:1 54s", "1:0 155d", "1:0 150i", "1:0 54s"}
	if !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func TestAFieldWithoutAWatchHasAStatusAndNoTime(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	m.must("group 1:0")
	m.must("fields 150,155,54 f")
	m.finds("latest", "1:0 150 i -16 0 "+blankInt, "1:0 155 d -16 0 "+blankDouble, "1:0 54 s -16 0 <<<NULL>>>")
	m.returns("since 0", -16)
}

func TestAnEventThatNeverWasHasNoData(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	m.watched("1:0", "230,6")
	m.finds("latest", "1:0 230 i -14 0 "+blankInt, "1:0 6 i -14 0 "+blankInt)
}

func TestTheFirstProfilingValueIsBlank(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100\nclock frozen")
	m.watched("1:0", "1001,1009")
	for _, v := range m.values("latest") {
		if v.status != 0 || v.ts == 0 || v.text != blankInt && v.text != blankDouble {
			t.Errorf("first %+v, want a blank value with status 0", v)
		}
	}
	m.change("advance 1s")
	for _, v := range m.values("latest") {
		if v.text == blankInt || v.text == blankDouble {
			t.Errorf("second %+v, want a value", v)
		}
	}
}

func TestSamplesFollowThePeriod(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100\nclock frozen")
	m.watched("1:0", "156")
	m.change("advance 3500ms")
	values := m.values("since 0")
	if len(values) != 4 {
		t.Fatalf("%d samples after 3.5 s, want 4", len(values))
	}
	for i, v := range values[1:] {
		if v.ts-values[i].ts != 1000000 || v.text <= values[i].text {
			t.Errorf("%+v after %+v, want more energy one second later", v, values[i])
		}
	}
	last := values[3]
	if got := m.values("latest")[0]; got != last {
		t.Errorf("latest %+v, want the last sample %+v", got, last)
	}
	lines := m.must(fmt.Sprintf("since %d", last.ts))
	if want := fmt.Sprintf("next %d", last.ts+1); len(lines) != 2 || lines[1] != want {
		t.Errorf("since the last sample: %v, want it and %q", lines, want)
	}
}

func TestNoMoreIsKeptThanTheWatchersWish(t *testing.T) {
	probe := buildProbe(t)
	for _, test := range []struct {
		watch string
		want  int
	}{{"watch 1000000 0 3", 3}, {"watch 1000000 5 0", 6}, {"watch 1000000 0 0", 11}} {
		m := newEngine(t, probe, "gpus 1 h100\nclock frozen")
		m.must("group 1:0")
		m.must("fields 150 f")
		m.must(test.watch)
		m.change("advance 10s")
		if got := len(m.values("since 0")); got != test.want {
			t.Errorf("%s keeps %d samples of 11, want %d", test.watch, got, test.want)
		}
	}
}

func TestBeforeVersion46AWatchHasNoValueAtOnce(t *testing.T) {
	m := newEngine(t, buildProbe(t), "version 4.5.0\ngpus 1 h100\nclock frozen")
	m.watched("1:0", "150")
	m.finds("latest", "1:0 150 i -14 0 "+blankInt)
	m.must("update")
	if v := m.values("latest")[0]; v.status != 0 {
		t.Errorf("after an update %+v, want a value", v)
	}
}

func TestAnUpdateTakesANewValue(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100\nclock frozen")
	m.watched("1:0", "150,155,54")
	m.change("field 0 150 41", "field 0 155 notsupported", "text 0 54 GPU-of  many words")
	m.must("update")
	var texts []string
	for _, v := range m.values("latest") {
		texts = append(texts, v.text)
	}
	if want := []string{"41", "140737488355330", "GPU-of many words"}; !slices.Equal(texts, want) {
		t.Errorf("values %q, want %q", texts, want)
	}
}

func TestAValueChangesFromNowOn(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100\nclock frozen\nfield 0 150 40")
	m.watched("1:0", "150")
	m.change("advance 2s", "field 0 150 41", "advance 1s")
	var texts []string
	for _, v := range m.values("since 0") {
		texts = append(texts, v.text)
	}
	if want := []string{"40", "40", "40", "41"}; !slices.Equal(texts, want) {
		t.Errorf("samples %q, want %q", texts, want)
	}
}

func TestSamplesDueBeforeAChangeHaveTheValueOfTheirTime(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100\nfield 0 150 40")
	m.must("group 1:0")
	m.must("fields 150 f")
	m.must("watch 1000 0 0")
	time.Sleep(20 * time.Millisecond)
	m.change("field 0 150 41")
	before := 0
	for _, v := range m.values("since 0") {
		if v.text == "40" {
			before++
		}
	}
	if before < 20 {
		t.Errorf("%d samples of 20 ms and 1 ms each have the value of before, want at least 20", before)
	}
}

func TestASentinelIsOfItsKind(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100\nclock frozen")
	m.watched("1:0", "150,155,54")
	for _, test := range []struct{ word, whole, double, text string }{
		{"blank", blankInt, blankDouble, "<<<NULL>>>"},
		{"notfound", "9223372036854775793", "140737488355329", "<<<NOT_FOUND>>>"},
		{"notsupported", "9223372036854775794", "140737488355330", "<<<NOT_SUPPORTED>>>"},
		{"notperm", "9223372036854775795", "140737488355331", "<<<NOT_PERM>>>"},
	} {
		m.change("field 0 150 "+test.word, "field 0 155 "+test.word, "field 0 54 "+test.word, "advance 1s")
		values := m.values("latest")
		if values[0].text != test.whole || values[1].text != test.double || values[2].text != test.text || values[0].status != 0 {
			t.Errorf("%s: %+v, want %s %s %s with status 0", test.word, values, test.whole, test.double, test.text)
		}
	}
}

func TestAStatusHidesTheValue(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	m.watched("1:0", "155")
	m.change("status 0 155 -17")
	m.finds("latest", "1:0 155 d -17 0 "+blankDouble)
	m.change("status 0 155 0")
	if v := m.values("latest")[0]; v.status != 0 {
		t.Errorf("after the status has gone %+v, want a value", v)
	}
}

func TestAnXIDStaysWithItsTime(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100\nclock frozen\nxid 1 13 ago 1m")
	m.watched("1:0,1:1", "230")
	m.change("xid 0 79", "advance 5s", "xid 0 31")
	values := m.values("since 0")
	var codes []string
	for _, v := range values {
		codes = append(codes, v.entity+" "+v.text)
	}
	if want := []string{"1:0 79", "1:0 31", "1:1 13"}; !slices.Equal(codes, want) {
		t.Fatalf("events %v, want %v", codes, want)
	}
	if values[1].ts-values[0].ts != 5000000 || values[0].ts-values[2].ts != 60000000 {
		t.Errorf("events %+v, want 5 s and a minute between them", values)
	}
	m.change("advance 1m", "xid 0 32 same")
	if v := m.values("latest")[0]; v.text != "32" || v.ts != values[1].ts {
		t.Errorf("the same event again %+v, want 32 at %d", v, values[1].ts)
	}
}

func TestAnXIDThatNobodyWatchedIsLost(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	m.must("devices")
	m.change("xid 0 79")
	m.watched("1:0", "230")
	m.finds("latest", "1:0 230 i -14 0 "+blankInt)
}

func TestWatchingIsNotAllOrNothing(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100\nprof 0 none")
	m.must("group 1:0,1:1")
	m.must("fields 1001,150 f")
	m.returns("watch 1000000 0 0", -33)
	var status []int
	for _, v := range m.values("latest") {
		status = append(status, v.status)
	}
	if want := []int{-16, 0, 0, 0}; !slices.Equal(status, want) {
		t.Errorf("status %v, want %v", status, want)
	}
	m.returns("prof 0", -33)
	m.finds("prof 1", "34 from 1001", "44 from 1040", "13 from 1084")
	m.change("prof 0 1001,1005")
	m.finds("prof 0", "2 from 1001")
}

func TestUnwatchingGlobalFieldsComplainsAndWorks(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	m.watched("1:0", "1,150")
	m.returns("unwatch", -16)
	for _, v := range m.values("latest") {
		if v.status != -16 {
			t.Errorf("%+v is still watched", v)
		}
	}
	if n := m.state().Watches; n != 0 {
		t.Errorf("%d watches left, want none", n)
	}
}

func TestReadingEntitiesPromisesNoOrder(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100\nclock frozen\nfield 0 150 40\nfield 1 150 41")
	lines := m.must("entities 1:0,1:1,1:5 150,65 1")
	var got []string
	for _, line := range lines {
		v := parseValue(t, line)
		got = append(got, fmt.Sprintf("%s %s %d", v.entity, v.field, v.status))
	}
	want := []string{"1:5 65 -1", "1:5 150 -1", "1:1 65 0", "1:1 150 0", "1:0 65 0", "1:0 150 0"}
	if !slices.Equal(got, want) {
		t.Errorf("live records %v, want %v", got, want)
	}
	m.finds("entities 1:0 1999 1", "1:0 1999 i -13 0 "+blankInt)
	m.finds("entities 1:5 150 0", "1:5 150 i -16 0 "+blankInt)
	m.returns("entities 1:0 230,150 1", -3)
}

func TestALiveReadOfAProfilingFieldCrashes(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 1 h100")
	if _, err := m.in.Write([]byte("entities 1:0 1001 1\n")); err != nil {
		t.Fatal(err)
	}
	if err := m.wait(); err == nil || !strings.Contains(m.errors.String(), "libdcgm would crash") {
		t.Errorf("ended with %v and said %q, want an abort", err, m.errors)
	}
}

func TestMIGEntitiesHaveTheirOwnAndTheGPUsValues(t *testing.T) {
	m := newEngine(t, buildProbe(t), "gpus 2 h100\nclock frozen\nmig 1 on\n"+
		"gi 1 profile 3g.40gb nvml 1 ci\ngi 1 profile 1g.10gb nvml 7 ci\ngi 1 profile 1g.10gb nvml 8\nci 1 gi 8 uuid MIG-told\nfield 1 150 60")
	m.watched("1:1,4:7,5:8,5:9", "54,150,250,1009,203")
	m.change("advance 1s")
	values := m.values("latest")
	at := func(entity, field string) string {
		for _, v := range values {
			if v.entity == entity && v.field == field {
				return v.text
			}
		}
		return "nothing"
	}
	for _, test := range []struct{ entity, field, want string }{
		{"5:8", "54", "MIG-told"},
		{"4:7", "150", "60"},
		{"5:9", "150", "60"},
		{"1:1", "250", "81559"},
		{"4:7", "250", "10194"},
		{"5:9", "250", "40779"},
		{"5:9", "1009", blankInt},
		{"1:1", "203", "9223372036854775794"},
	} {
		if got := at(test.entity, test.field); got != test.want {
			t.Errorf("field %s of %s is %s, want %s", test.field, test.entity, got, test.want)
		}
	}
	if got := at("4:7", "54"); !strings.HasPrefix(got, "MIG-") || got == at("5:9", "54") {
		t.Errorf("the UUID of 4:7 is %s, want one of its own", got)
	}
	if got := at("4:7", "1009"); got == blankInt {
		t.Error("a GPU instance has no PCIe traffic, want some")
	}
	m.change("xid 1 94 gi 1 ci 0")
	m.watchedAs("more", "5:9", "230")
	m.change("xid 1 95 gi 1 ci 0")
	if v := m.values("latest")[0]; v.text != "95" {
		t.Errorf("the event of the compute instance is %+v, want 95", v)
	}
}
