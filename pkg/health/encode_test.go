// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestAStateOfANewerVersionIsRefusedByName(t *testing.T) {
	var s State
	err := json.Unmarshal([]byte(`{"format":2,"cards":"other"}`), &s)
	if !errors.Is(err, ErrNewerFormat) || !strings.Contains(err.Error(), "format 2, and up to 1 is known") || s != (State{}) {
		t.Errorf("%v", err)
	}
}

func TestTheStateThatKnowsNothingIsSavedAndTakenUp(t *testing.T) {
	text, err := json.Marshal(State{})
	var s State
	if err != nil || json.Unmarshal(text, &s) != nil || s != (State{}) || s.Durable() != 0 {
		t.Errorf("%s, %v: %+v", text, err, s)
	}
	if r := s.Report(); r == nil || len(r.Verdicts) != 0 {
		t.Errorf("%+v", r)
	}
	if got := asJSON(t, s.Report()); strings.Contains(got, "null") {
		t.Errorf("%s", got)
	}
}

func TestAStateThatCannotBeIsRefused(t *testing.T) {
	m := aNode(t, 1, Config{})
	m.cards[0].cut(0)
	m.facts = map[string][]Fact{"plugin": {{GPU: "GPU-a", Kind: KindMPSDown, Class: ClassReset, Text: "down"}}}
	m.xid(m.cards[0], 79)
	m.tick()
	text := asJSON(t, m.state)
	for _, change := range [][2]string{
		{`"format":1`, `"format":0`}, {`"format":1`, `"format":"1"`}, {`"uuid":"MIG-GPU-a-0"`, `"uuid":"GPU-a"`}, {`"uuid":"GPU-a"`, `"uuid":""`},
		{`"status":"unhealthy"`, `"status":"dying"`}, {`"kind":"xid_79","class":"node"`, `"kind":"xid_79","class":"app"`}, {`"origin":1`, `"origin":9`},
		{`"kind":"xid_79"`, `"kind":"mps_down"`}, {`"kind":"xid_79"`, `"kind":"xid\n79"`}, {`"own":"node"`, `"own":"none"`}, {`"class":"node"`, `"class":1`},
		{`"plugin":[{"gpu":"GPU-a"`, `"plugin":[{"gpu":""`}, {`"device":"GPU-a","transitions"`, `"device":"Z","transitions"`},
		{`"unhealthyNanoseconds":0`, `"unhealthyNanoseconds":-1`}, {`"bootID":"boot-1","cards"`, `"bootID":"boot\n1","cards"`},
	} {
		broken := strings.Replace(text, change[0], change[1], 1)
		if broken == text {
			t.Fatalf("%s is not in %s", change[0], text)
		}
		s := m.state
		if err := json.Unmarshal([]byte(broken), &s); err == nil || s != m.state {
			t.Errorf("%s in place of %s is taken: %v", change[1], change[0], err)
		}
	}
}

func TestSecondsAloneAreNotWorthSaving(t *testing.T) {
	m := aNode(t, 2, Config{})
	m.cards[0].set(fieldRemapFailed, 1)
	m.xid(m.cards[1], 79)
	m.tick()
	m.tick()
	before := m.state.Durable()
	for range 100 {
		m.tick()
	}
	if got := m.state.Durable(); got != before {
		t.Errorf("durable %d after %d while nothing happened", got, before)
	}
	for _, happen := range []func(){
		func() { m.xid(m.cards[1], 79) }, func() { m.cards[0].set(fieldSRAM, 1) }, func() { m.boot = "boot-2" },
		func() { m.cards[0].hangs = true }, func() { m.cards[0].gone = true }, func() { m.silent = true },
		func() {
			m.facts = map[string][]Fact{"plugin": {{GPU: "GPU-b", Kind: KindMPSDown, Class: ClassWatch, Text: "down"}}}
		},
	} {
		before := m.state.Durable()
		happen()
		m.tick()
		if m.state.Durable() <= before {
			t.Errorf("durable %d still", before)
		}
	}
}
