// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"pgregory.net/rapid"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// kernel is a pretend node's kernel module: it drives more GPUs than the library has looked for.
type kernel struct {
	t      *testing.T
	folder string
	m      *machine
	all    []*board
}

// newKernel is a machine with the first n GPUs bound, and a source on it.
func newKernel(t *testing.T, n int) (*kernel, *Source) {
	t.Helper()
	m := newMachine(modelH100())
	k := &kernel{t: t, folder: t.TempDir(), m: m, all: m.boards}
	m.atInit = func(m *machine) { m.boards = k.bound() }
	for i := range n {
		k.bind(i)
	}
	s, err := open(Config{}, m.library(), k.folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return k, s
}

func (k *kernel) path(i int) string { return filepath.Join(k.folder, k.all[i].uuid) }

func (k *kernel) bind(i int) {
	k.t.Helper()
	if err := os.Mkdir(k.path(i), 0o700); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) unbind(i int) {
	k.t.Helper()
	if err := os.Remove(k.path(i)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) bound() []*board {
	var out []*board
	for i, b := range k.all {
		if _, err := os.Stat(k.path(i)); err == nil {
			out = append(out, b)
		}
	}
	return out
}

// The library lists the GPUs that there were when it was initialised.
func TestAGPUThatIsBoundLaterIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newKernel(t, 3)
		if r := read(t, s, 155); len(r.Devices) != 3 {
			t.Fatalf("%d devices", len(r.Devices))
		}
		time.Sleep(rescanPause)
		k.bind(5)
		k.unbind(0)
		r := read(t, s, 155)
		if got := uuids(r); len(got) != 3 || got[0] != k.all[1].uuid || got[2] != k.all[5].uuid || !valueOf(t, r, 2, 155).Present() {
			t.Errorf("the cards are %v", got)
		}
		for range 100 {
			read(t, s, 155)
			time.Sleep(time.Second)
		}
		if k.m.inits != 2 || k.m.shutdowns != 1 {
			t.Errorf("%d initialisations, %d shutdowns", k.m.inits, k.m.shutdowns)
		}
		k.m.xid(2, gpu.NoInstance, 31)
		if r := read(t, s, 155); len(r.Events) != 1 || r.Events[0].GPU != gpu.UUID(k.all[5].uuid) {
			t.Errorf("%+v", r.Events)
		}
	})
}

func TestGPUsThatComeAndGoAllTheTimeAreLookedForRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newKernel(t, 3)
		for i := range 300 {
			if i%2 == 0 {
				k.bind(5)
			} else {
				k.unbind(5)
			}
			read(t, s, 155)
			time.Sleep(time.Second)
		}
		if k.m.inits > 1+300/30 || k.m.inits < 5 {
			t.Errorf("%d initialisations in 300 s", k.m.inits)
		}
	})
}

func TestAGPUThatHangsKeepsTheOthersRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newKernel(t, 3)
		read(t, s, 155, 1002)
		k.m.hang(1)
		defer k.m.unhang(1)
		read(t, s, 155, 1002)
		time.Sleep(rescanPause)
		k.bind(4)
		for range 3 {
			r := read(t, s, 155, 1002)
			if power, busy := valueOf(t, r, 0, 155), valueOf(t, r, 2, 1002); len(r.Devices) != 3 || !power.Present() || !busy.Present() {
				t.Errorf("%d devices, %s and %s, %+v", len(r.Devices), show(power), show(busy), r.Troubles)
			}
			time.Sleep(rescanPause)
		}
		k.m.unhang(1)
		synctest.Wait()
		read(t, s, 155)
		if r := read(t, s, 155); len(r.Devices) != 4 {
			t.Errorf("after it: %d devices, %+v", len(r.Devices), r.Troubles)
		}
	})
}

func TestADriverThatIsGoneWhenLookedForAnewIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newKernel(t, 2)
		read(t, s, 155)
		time.Sleep(rescanPause)
		k.bind(2)
		k.m.initFails = nvml.ERROR_DRIVER_NOT_LOADED
		if _, err := s.Read(t.Context(), nil); kindOf(err) != kindDriver || !errors.Is(err, ErrNoDriver) {
			t.Errorf("it says %v", err)
		}
		k.m.initFails = nvml.SUCCESS
		time.Sleep(firstPause)
		if r := read(t, s, 155); len(r.Devices) != 3 {
			t.Errorf("%d devices", len(r.Devices))
		}
	})
}

func TestWhatCannotBeLetGoIsReadOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newKernel(t, 2)
		read(t, s, 155)
		time.Sleep(rescanPause)
		k.bind(2)
		k.m.shutdownFails = nvml.ERROR_UNKNOWN
		for range 20 {
			if r := read(t, s, 155); len(r.Devices) != 2 || !valueOf(t, r, 1, 155).Present() {
				t.Errorf("%d devices, %+v", len(r.Devices), r.Troubles)
			}
			time.Sleep(time.Second)
		}
		if k.m.shutdowns != 1 {
			t.Errorf("%d attempts in 20 s", k.m.shutdowns)
		}
	})
}

func TestAKernelModuleThatCannotBeSeenIsNoReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, s := newKernel(t, 2)
		read(t, s, 155)
		time.Sleep(rescanPause)
		if err := os.RemoveAll(k.folder); err != nil {
			t.Fatal(err)
		}
		read(t, s, 155)
		if k.m.inits != 1 {
			t.Errorf("%d initialisations", k.m.inits)
		}
	})
}

func TestAChangeOfTheInventoryIsLoggedByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		m := newMachine(modelH100())
		all := m.boards
		m.boards = all[:3]
		s := m.source(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 3 {
			read(t, s, 155)
		}
		if log.Len() > 0 {
			t.Errorf("nothing has changed: %s", log.String())
		}
		m.mu.Lock()
		m.boards = []*board{all[0], all[1], all[5]}
		m.mu.Unlock()
		read(t, s, 155)
		read(t, s, 155)
		want := fmt.Sprintf("came=%q went=%q", "GPU 2 "+all[5].uuid, "GPU 2 "+all[2].uuid)
		if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), want) {
			t.Errorf("want %s in one line:\n%s", want, log.String())
		}
		m.change(0, func(b *board) { b.partition(seat{rank: nvml.GPU_INSTANCE_PROFILE_7_SLICE}) })
		mig := read(t, s, 155).Devices[1]
		if want := fmt.Sprintf("came=%q went=none", "GPU 0 "+string(mig.UUID)); !strings.Contains(log.String(), want) {
			t.Errorf("want %s in\n%s", want, log.String())
		}
	})
}

// Whatever a driver lists, a line of the log is short.
func TestWhatHasChangedIsNamedInABoundedLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lists := rapid.SliceOfNDistinct(rapid.String(), 0, 40, rapid.ID[string])
		before, now := lists.Draw(t, "before"), lists.Draw(t, "now")
		came, went := changes(before, now)
		if longest := mostNamed*(80*utf8.UTFMax+2) + 20; len(came) > longest || len(went) > longest {
			t.Fatalf("lines of %d and %d bytes", len(came), len(went))
		}
		if same, none := changes(now, now); same != "none" || none != "none" {
			t.Fatalf("of nothing came %q and went %q", same, none)
		}
	})
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprint("GPU ", i))
	}
	came, went := changes(many[:1], many)
	if !strings.HasPrefix(came, "GPU 1, GPU 2, ") || !strings.HasSuffix(came, "GPU 16 and 3 more") || went != "none" {
		t.Errorf("came %q, went %q", came, went)
	}
}
