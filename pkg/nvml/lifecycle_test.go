// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

func TestADriverThatIsAwayIsTriedAgainEverMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		read(t, s, 155)
		m.cut()
		start := time.Now()
		var tries []time.Duration
		inits := m.inits
		var last error
		for range 4000 {
			_, err := s.Read(t.Context(), defaultCounters())
			if err == nil {
				t.Fatal("a reading without a driver")
			}
			if kindOf(err) != kindDriver || !errors.Is(err, ErrNoDriver) {
				t.Fatalf("kind %q: %v", kindOf(err), err)
			}
			if m.inits != inits {
				inits = m.inits
				tries = append(tries, time.Since(start).Round(100*time.Millisecond))
			}
			last = err
			time.Sleep(50 * time.Millisecond)
		}
		want := "[100ms 1.1s 3.1s 7.1s 15.1s 31.1s 1m1.1s 1m31.1s 2m1.1s 2m31.1s 3m1.1s]"
		if fmt.Sprint(tries) != want {
			t.Errorf("it was tried after %v, want %v", tries, want)
		}
		for _, text := range []string{"the driver is not loaded", "modprobe nvidia", "next attempt in"} {
			if !strings.Contains(last.Error(), text) {
				t.Errorf("the error does not say %q: %v", text, last)
			}
		}
		m.mend()
		time.Sleep(longestPause)
		if r := read(t, s, 155); len(r.Devices) != 8 || len(r.Troubles) != 0 {
			t.Errorf("it is back: %d devices, %+v", len(r.Devices), r.Troubles)
		}
		m.cut()
		_, _ = s.Read(t.Context(), nil)
		inits = m.inits
		_, _ = s.Read(t.Context(), nil)
		if m.inits != inits+1 {
			t.Error("after a good time it is not tried at once")
		}
		if _, err := s.Read(t.Context(), nil); err == nil || !strings.HasSuffix(err.Error(), "next attempt in 1s") {
			t.Errorf("after a good time the pauses go on: %v", err)
		}
	})
}

func TestTheDriverIsReleasedAndResumed(t *testing.T) {
	m := newMachine(modelH100())
	s := m.source(t, Config{})
	read(t, s, defaultCounters()...)
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sets, samples := m.leaks(); sets != 0 || samples != 0 || m.shutdowns != 1 {
		t.Errorf("released with %d event sets and %d samples, %d shutdowns", sets, samples, m.shutdowns)
	}
	if _, err := s.Read(t.Context(), defaultCounters()); kindOf(err) != kindReleased || !strings.Contains(err.Error(), "SIGUSR1") {
		t.Errorf("read while released: %v", err)
	}
	if _, err := s.Parts(t.Context(), gpu.UUID(m.boards[0].uuid)); kindOf(err) != kindReleased {
		t.Errorf("parts while released: %v", err)
	}
	if err := s.Release(t.Context()); err != nil || m.shutdowns != 1 {
		t.Errorf("released twice: %v, %d shutdowns", err, m.shutdowns)
	}
	m.cut()
	if err := s.Resume(t.Context()); !errors.Is(err, ErrNoDriver) {
		t.Errorf("resumed without a driver: %v", err)
	}
	m.mend()
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(firstPause)
	m.xid(0, gpu.NoInstance, 31)
	read(t, s, 155)
	m.xid(0, gpu.NoInstance, 43)
	if r := read(t, s, 230); len(r.Events) != 1 || r.Events[0].Code != 43 || show(valueOf(t, r, 0, 230)) != "43" {
		t.Errorf("after it: %+v", r.Events)
	}
}

func TestTheDriverIsNotReleasedUnderACallThatHangs(t *testing.T) {
	m := newMachine(modelH100())
	s := m.source(t, Config{})
	read(t, s, 155)
	m.hang(2)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Read(ctx, nil); err != nil {
		t.Fatal(err)
	}
	release, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Release(release); err == nil || !strings.Contains(err.Error(), "calls are outstanding for GPU 2") || m.shutdowns != 0 {
		t.Errorf("released: %v, %d shutdowns", err, m.shutdowns)
	}
	if r := read(t, s, 155); len(r.Devices) != 8 || !valueOf(t, r, 0, 155).Present() {
		t.Error("the others are not read any more")
	}
	m.unhang(2)
	for range 100 {
		if s.Release(t.Context()) == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("it is not released, though nothing hangs any more")
}

func TestCloseDoesNotWaitForACallThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		s := m.source(t, Config{})
		read(t, s, 155)
		m.hang(5)
		var reading sync.WaitGroup
		reading.Go(func() {
			if _, err := s.Read(context.Background(), defaultCounters()); kindOf(err) != kindClosed {
				t.Errorf("a reading under way: %v", err)
			}
		})
		synctest.Wait()
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		reading.Wait()
		if took := time.Since(began); took > closePatience {
			t.Errorf("closing took %v", took)
		}
		if m.shutdowns != 0 {
			t.Error("the library was shut down under a call")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := s.Read(t.Context(), nil); kindOf(err) != kindClosed {
			t.Errorf("read after close: %v", err)
		}
		m.unhang(5)
	})
}

func TestClosingFreesWhatWasMade(t *testing.T) {
	m := newMachine(modelH100())
	mixed(m, 0)
	s := m.source(t, Config{})
	for range 3 {
		read(t, s, defaultCounters()...)
		time.Sleep(gpmClosest)
	}
	if sets, samples := m.leaks(); sets != 8 || samples != 2*(8+3) {
		t.Errorf("%d event sets, %d samples", sets, samples)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if sets, samples := m.leaks(); sets != 0 || samples != 0 || m.shutdowns != 1 {
		t.Errorf("left are %d event sets, %d samples; %d shutdowns", sets, samples, m.shutdowns)
	}
}

func TestADriverThatCannotBeInitialisedSaysWhatToDo(t *testing.T) {
	for ret, want := range map[nvml.Return]string{
		nvml.ERROR_DRIVER_NOT_LOADED:       "modprobe nvidia",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "restart this program",
		nvml.ERROR_NO_PERMISSION:           "/dev/nvidiactl",
		nvml.ERROR_UNKNOWN:                 "nvidia-smi",
		nvml.ERROR_OPERATING_SYSTEM:        "device cgroup",
		nvml.ERROR_IRQ_ISSUE:               "dmesg",
	} {
		m := newMachine(modelH100())
		m.initFails = ret
		_, err := open(Config{}, m.library(), "")
		if !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "/pretend/libnvidia-ml.so.1") {
			t.Errorf("%d: %v, want %q in it", ret, err, want)
		}
	}
}

// Thousands of new layouts leave no sample and no event set behind.
func TestRepartitionsLeakNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(modelH100())
		m.boards = m.boards[:1]
		s := m.source(t, Config{})
		for i := range 1000 {
			m.change(0, func(b *board) {
				b.partition(
					seat{rank: nvml.GPU_INSTANCE_PROFILE_3_SLICE, start: uint32(i % 2 * 4)},
					seat{rank: nvml.GPU_INSTANCE_PROFILE_1_SLICE, start: uint32(4 - i%2*4)})
			})
			if r := read(t, s, defaultCounters()...); len(r.Devices) != 3 {
				t.Fatalf("layout %d: %+v", i, r.Devices)
			}
			time.Sleep(time.Second)
		}
		if sets, samples := m.leaks(); sets != 1 || samples != 6 {
			t.Errorf("%d event sets, %d samples", sets, samples)
		}
		read(t, s, 155)
		if _, samples := m.leaks(); samples != 0 {
			t.Errorf("%d samples where no profiling is asked for", samples)
		}
	})
}

func TestADriverThatIsAwayIsTriedAgainWithoutGPUsToo(t *testing.T) {
	m := newMachine(modelH100())
	m.boards = nil
	s := m.source(t, Config{})
	read(t, s)
	m.cut()
	for range 2 {
		if _, err := s.Read(t.Context(), nil); kindOf(err) != kindDriver {
			t.Errorf("kind %q: %v", kindOf(err), err)
		}
	}
	if m.inits != 2 {
		t.Errorf("%d initialisations", m.inits)
	}
}
