// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWhatIsSealedIsWhatIsUnsealed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")
		got, err := unseal(conditionsWord, seal(conditionsWord, payload))
		if err != nil || !bytes.Equal(got, payload) {
			t.Fatalf("%q, %v", got, err)
		}
	})
}

func TestNoTornOrChangedFileIsTakenForWhole(t *testing.T) {
	whole := seal(conditionsWord, []byte(`{"conditions":[{"gpu":"GPU-a","kind":"xid_79"}]}`))
	for n := range whole {
		if _, err := unseal(conditionsWord, whole[:n]); !errors.Is(err, errCorrupt) {
			t.Errorf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
	for i := range whole {
		for bit := range 8 {
			changed := bytes.Clone(whole)
			changed[i] ^= 1 << bit
			if _, err := unseal(conditionsWord, changed); err == nil {
				t.Errorf("bit %d of byte %d (%q) is another, and nobody noticed", bit, i, whole[i])
			}
		}
	}
	if _, err := unseal(conditionsWord, append(bytes.Clone(whole), 'x')); !errors.Is(err, errCorrupt) {
		t.Errorf("something behind the end: %v", err)
	}
}

func TestAFileOfALaterVersionIsNotCalledCorrupt(t *testing.T) {
	for _, line := range []string{"gpumeter-conditions 2 00000000 4\nabcd\n", "gpumeter-conditions 12 sha256:ab\nabcd"} {
		if _, err := unseal(conditionsWord, []byte(line)); !errors.Is(err, errNewer) || !strings.Contains(err.Error(), "this program knows 1") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestAFileOfAnotherKindIsNoLaterVersion(t *testing.T) {
	if _, err := unseal(conditionsWord, []byte("gpumeter-inventory 2 00000000 4\nabcd\n")); !errors.Is(err, errCorrupt) {
		t.Errorf("%v", err)
	}
}

func FuzzUnseal(f *testing.F) {
	f.Add(seal(conditionsWord, nil))
	f.Add(seal(conditionsWord, []byte("{}")))
	f.Add([]byte("gpumeter-conditions 1 00000000 -1\n"))
	f.Add([]byte("gpumeter-conditions 1 00000000 9223372036854775807\n\n"))
	f.Add([]byte("gpumeter-conditions 2 "))
	f.Fuzz(func(t *testing.T, data []byte) {
		payload, err := unseal(conditionsWord, data)
		if err == nil && !bytes.Equal(seal(conditionsWord, payload), data) {
			t.Errorf("%q was taken for what is written %q", data, seal(conditionsWord, payload))
		}
		if err != nil && !errors.Is(err, errCorrupt) && !errors.Is(err, errNewer) {
			t.Errorf("%v", err)
		}
	})
}
