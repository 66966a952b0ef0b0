// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// FuzzDecodePlain holds what is read without encoding/json against it.
func FuzzDecodePlain(f *testing.F) {
	for _, body := range plainBodies() {
		text, err := json.Marshal(body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(body.Kind()), text)
	}
	for _, text := range []string{
		`{}`, `{"id":1,"id":2}`, `{"ID":1}`, `{"id":-1}`, `{"id":01}`, `{"id":1.0}`, `{"id":1e3}`, `{"id":"1"}`, `{"id":null}`, `{ "id":1}`,
		`{"id":18446744073709551616}`, `{"why":"\u0041"}`, `{"why":"é"}`, `{"why":"x","more":[1]}`, `{"id":1}x`, `{"id":1,}`, `{,"id":1}`,
		`{"energy":{"1":2,"1":3}}`, `{"energy":{"01":2}}`, `{"energy":{"+1":2}}`, `{"energy":{"-1":2}}`, `{"energy":null}`, `{"busy":{"":0}}`, `{"energy":{"1":2},"energy":{"2":3}}`, `{"id":-0}`, `{"gi":-0}`,
	} {
		for _, kind := range []Kind{KindOpen, KindClose, KindUse} {
			f.Add(string(kind), []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, kind string, text []byte) {
		got, ok := decodePlain(Kind(kind), text)
		if !ok {
			return
		}
		want := bodyOf(Kind(kind))
		if err := json.Unmarshal(text, want); err != nil {
			t.Fatalf("%s is %+v, and to encoding/json an error: %v", text, got, err)
		}
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("%s is %+v, and to encoding/json %+v", text, got, want)
		}
	})
}

func plainBodies() []Body {
	return []Body{
		&Open{
			ID: 7, Card: 2, Device: "MIG-1", GPUInstance: 3, Profile: "1g.10gb", Namespace: "n", Pod: "p", PodUID: "u", Container: "c",
			Resource: "nvidia.com/gpu.shared", Mode: "mig-shared", Seats: 1, Of: 4, Weight: "15/112", Part: "15/448", Memory: "1/32", Policy: "blend",
		},
		&Open{ID: 8, Card: 1, GPUInstance: gpu.NoInstance, Cause: "free", Part: "1", Memory: "1"},
		&Close{ID: 7, Why: CloseEnded},
		&Use{
			Energy: map[int]int64{1: 5, 2: 0}, Busy: map[gpu.UUID]int64{"GPU-1": 3}, Basis: BasisEngine, Counters: map[int]int64{1: 1 << 40},
		},
		&Use{},
	}
}

// The records that a ledger has most of are read the fast way, or there would be no use in it.
func TestWhatABookWritesIsReadPlain(t *testing.T) {
	for _, body := range plainBodies() {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := decodePlain(body.Kind(), text); !ok || !reflect.DeepEqual(got, body) {
			t.Errorf("%s is %+v, %v", text, got, ok)
		}
	}
}
