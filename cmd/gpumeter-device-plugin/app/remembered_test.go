// SPDX-License-Identifier: Apache-2.0

package app

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestARestartWithoutTheAPIServerKeepsTheConfig(t *testing.T) {
	dir := t.TempDir()
	m, none, err := openMemory(dir)
	if err != nil || none != nil {
		t.Fatalf("to begin with: %+v, %v", none, err)
	}
	s := newStage(t, func(c *config) { c.configDir, c.healthSocket = dir, "" })
	s.keepConfig = func(c rememberedConfig) {
		if err := m.save(c); err != nil {
			t.Error(err)
		}
	}
	const shared = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"
	if err := s.takeConfig(configRead{name: "shared", from: fromLabel, data: []byte(shared), synced: true}, noon); err != nil {
		t.Fatal(err)
	}
	hash := s.effective.hash
	// What is bad, or was itself remembered, is not remembered.
	_ = s.takeConfig(configRead{name: "bad", from: fromLabel, data: []byte("x: y"), synced: true}, noon)
	_ = s.takeConfig(configRead{name: "early", from: fromDefault, data: []byte("version: v1")}, noon)

	_, remembered, err := openMemory(dir)
	if err != nil || remembered == nil || remembered.from != fromMemory || remembered.name != "shared" || string(remembered.data) != shared {
		t.Fatalf("remembered %+v, %v", remembered, err)
	}
	again := newStage(t, func(c *config) { c.configDir, c.healthSocket = dir, "" })
	if err := again.takeConfig(*remembered, noon); err != nil || again.effective.hash != hash {
		t.Fatalf("taken up as %s, was %s: %v", again.effective.hash, hash, err)
	}
	if r := parseRevision(again.look(1).to.last(t).Revision); r.from != fromMemory {
		t.Errorf("told as %+v", r)
	}
}

func TestTheRememberedConfigHoldsUntilTheLabelIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "a"), "# a")
		write(t, filepath.Join(dir, "default"), "# default")
		node := newFakeNode()
		var log strings.Builder
		cfg := config{configDir: dir, nodeLabel: "l", fallbacks: fallbackWords()}
		gone := &configRead{name: filepath.Join(dir, "gone"), from: fromMemory, data: []byte("# gone")}
		reads := following(t, &configSource{cfg: cfg, log: slog.New(slog.NewTextHandler(&log, nil)), node: node.watch, remembered: gone})
		time.Sleep(labelPatience + time.Second)
		if r := reads(); len(r) != 1 || r[0].from != fromMemory || string(r[0].data) != "# gone" {
			t.Fatalf("without an answer: %+v", r)
		}
		time.Sleep(time.Hour)
		if r := reads(); len(r) != 1 {
			t.Fatalf("after an hour: %+v", r)
		}
		node.set(map[string]string{"l": "a"})
		if r := reads(); len(r) != 2 || r[1].from != fromLabel || string(r[1].data) != "# a" || !r[1].synced {
			t.Fatalf("when the API server answers: %+v", r)
		}
		if !strings.Contains(log.String(), "before the restart") {
			t.Errorf("log: %s", &log)
		}
	})
}

func FuzzDecodeRemembered(f *testing.F) {
	f.Add([]byte(`{"Format":1,"Name":"/x/a","Hash":"h","Data":"eA=="}`))
	f.Add([]byte(`{"Format":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRemembered(data)
		if (r == nil) == (err == nil) || r != nil && (r.from != fromMemory || r.synced) {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
