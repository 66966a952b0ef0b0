// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func checkpointNumbered(n int) *checkpoint {
	state := append(append([]byte(`{"x":"`), bytes.Repeat([]byte{'a' + byte(n%26)}, n%5*3000)...), `"}`...)
	return &checkpoint{LedgerID: "l", Seq: uint64(n), Link: linkOf([]byte{byte(n)}).String(), BootID: "b", State: state}
}

// savedStore is the file of a store to which checkpoints 1 to n were saved.
func savedStore(t testing.TB, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), storeName)
	s, err := osDisk{hasty: true}.CreateStore(path, checkpointNumbered(1))
	if err != nil {
		t.Fatal(err)
	}
	for i := 2; i <= n; i++ {
		if err := s.Save(checkpointNumbered(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheLastCheckpointIsReadBack(t *testing.T) {
	path := savedStore(t, 9)
	s, c, err := osDisk{}.OpenStore(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(checkpointNumbered(9), c); diff != "" {
		t.Error(diff)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := (osDisk{}).OpenStore(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("where there is none: %v", err)
	}
}

func TestAStoreThatIsMadeAnewReplacesWhatIsThereAsAWhole(t *testing.T) {
	path := savedStore(t, 3)
	if err := os.WriteFile(path+".new", []byte("left behind"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := osDisk{hasty: true}.CreateStore(path, checkpointNumbered(7))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Save(checkpointNumbered(8)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, c, err := (osDisk{}).OpenStore(path); err != nil || c.Seq != 8 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A damaged store may say what was saved, or that it is damaged; never anything else, and it neither hangs nor panics.
func TestADamagedStoreIsToldFromAWholeOne(t *testing.T) {
	path := savedStore(t, 9)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	damaged := 0
	for range crashRounds(t, 60) {
		data := bytes.Clone(whole)
		switch rnd.IntN(4) {
		case 0:
			data = data[:rnd.IntN(len(data))]
		case 1:
			at := rnd.IntN(len(data))
			clear(data[at:min(at+1+rnd.IntN(9000), len(data))])
		case 2:
			for range 1 + rnd.IntN(200) {
				data[rnd.IntN(len(data))] = byte(rnd.Int())
			}
		case 3:
			// The heads of pages are small, so they are sought out.
			for range 1 + rnd.IntN(3) {
				data[rnd.IntN(len(data)/4096)*4096+rnd.IntN(32)] ^= 1 << rnd.IntN(8)
			}
		}
		path := filepath.Join(t.TempDir(), storeName)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, c, err := osDisk{hasty: true}.OpenStore(path)
		if err != nil {
			damaged++
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("damage is told as %v", err)
			}
			continue
		}
		if want := checkpointNumbered(int(c.Seq)); !cmp.Equal(c, want) {
			t.Fatalf("it says %+v", c)
		}
		// What can be read can be written, or says that it cannot.
		if err := s.Save(checkpointNumbered(10)); err != nil && !errors.Is(err, errCorrupt) {
			t.Fatal(err)
		}
		_ = s.Close()
	}
	if damaged == 0 {
		t.Error("no damage was noticed")
	}
}

func TestAStoreThatCannotBeReadIsNotCalledDamaged(t *testing.T) {
	path := savedStore(t, 2)
	held, _, err := osDisk{}.OpenStore(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, _, err := (osDisk{}).OpenStore(path); err == nil || errors.Is(err, errCorrupt) {
		t.Errorf("one that another process has open: %v", err)
	}
	if _, _, err := (osDisk{}).OpenStore(filepath.Dir(path)); err == nil || errors.Is(err, errCorrupt) {
		t.Errorf("a folder: %v", err)
	}
}
