// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/pkg/health"
)

// witness keeps what was handed over.
type witness struct {
	mu   sync.Mutex
	seen map[string][]health.Condition
}

func (w *witness) Witness(reporter string, seen []health.Condition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = map[string][]health.Condition{reporter: seen}
}

func TestWhatAClientHeardIsHandedOver(t *testing.T) {
	w, socket := &witness{}, socketIn(t)
	serve(t, NewServer(ServerConfig{Source: newBoard(nil), Witnesses: w}), socket)
	c := NewClient(ClientConfig{Socket: socket})
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	good := health.Condition{
		Subject: health.WholeCard("GPU-0"), Kind: "xid_79", Class: health.ClassNode, Since: at, Last: at.Add(time.Second), Count: 2, BootID: "boot", XID: 79, Evidence: "XID 79",
	}
	bad := []health.Condition{good, good, good, good}
	bad[0].GPU = ""
	bad[1].GPU = "MIG-1"
	bad[2].Kind = health.KindLost
	bad[3].Last = time.Time{}
	err := c.HandOver(t.Context(), "plugin", append(bad, good))
	if err == nil || strings.Count(err.Error(), "refuses") != len(bad) {
		t.Errorf("error %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := cmp.Diff(map[string][]health.Condition{"plugin": {good}}, w.seen); d != "" {
		t.Errorf("(-handed over +came):\n%s", d)
	}
}

func TestAServerSaysThatItTakesNothingOver(t *testing.T) {
	w, socket := &witness{}, socketIn(t)
	serve(t, NewServer(ServerConfig{Source: newBoard(nil), Witnesses: w}), socket)
	c := NewClient(ClientConfig{Socket: socket})
	if err := c.HandOver(t.Context(), "", nil); err == nil || !strings.Contains(err.Error(), "name") {
		t.Errorf("without a name: %v", err)
	}
	if err := c.HandOver(t.Context(), "plugin", make([]health.Condition, maxFacts+1)); err == nil {
		t.Error("too many were taken")
	}
	deaf := socketIn(t)
	serve(t, NewServer(ServerConfig{Source: newBoard(nil)}), deaf)
	if err := NewClient(ClientConfig{Socket: deaf}).HandOver(t.Context(), "plugin", nil); err == nil || !strings.Contains(err.Error(), "takes no conditions") {
		t.Errorf("a deaf one: %v", err)
	}
}
