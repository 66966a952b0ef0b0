// SPDX-License-Identifier: Apache-2.0

package etc

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestAFileThatIsNotShippedIsAnsweredWithThoseThatAre(t *testing.T) {
	for _, name := range []string{"", ".", "../etc.go", "etc.go", "/etc/dcgm-exporter/default-counters.csv", "default-counters"} {
		data, err := ReadFile(name)
		if err == nil {
			t.Errorf("ReadFile(%q) gives %d bytes", name, len(data))
			continue
		}
		if name != "." && (!errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "default-counters.csv")) {
			t.Errorf("ReadFile(%q): %v", name, err)
		}
	}
}

func TestTheTextIsTheCallersOwn(t *testing.T) {
	for name, read := range map[string]func() []byte{
		"DefaultCounters": DefaultCounters,
		"XIDs":            XIDs,
		"ReadFile":        func() []byte { data, _ := ReadFile("default-counters.csv"); return data },
	} {
		first := read()
		if len(first) == 0 {
			t.Fatalf("%s is empty", name)
		}
		first[0] = 'x'
		if read()[0] == 'x' {
			t.Errorf("%s: changing the text changed what is shipped", name)
		}
	}
}

// Who asks for counter files must not be offered, or given, another kind of file.
func TestTheTableOfXIDsIsNoCounterFile(t *testing.T) {
	for _, name := range Names() {
		if !strings.HasSuffix(name, ".csv") {
			t.Errorf("counter files include %s", name)
		}
	}
	if _, err := ReadFile("xid.yaml"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile(xid.yaml): %v, want that there is no such counter file", err)
	}
}
