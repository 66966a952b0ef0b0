// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"fmt"
	"sync"
	"time"
)

// openQuiet is how long an opening may take before the log says that it does.
const openQuiet = 5 * time.Second

// once opens a source the first time it is asked for, and remembers it for Close. One that comes
// after patience ran out is closed by itself.
func (s *Sources) once(name string, open func() (Driver, error)) func() (Driver, error) {
	return sync.OnceValues(func() (Driver, error) {
		defer s.tellOpening(name)()
		type answer struct {
			driver Driver
			err    error
		}
		came := make(chan answer, 1)
		go func() {
			d, err := open()
			came <- answer{d, err}
		}()
		select {
		case a := <-came:
			if a.err != nil {
				return nil, a.err
			}
			s.mu.Lock()
			s.opened = append(s.opened, namedDriver{name, a.driver})
			s.mu.Unlock()
			return a.driver, nil
		case <-time.After(s.patience):
			go func() {
				if a := <-came; a.err == nil {
					_ = closeDriver(a.driver)
				}
			}()
			return nil, fmt.Errorf("no answer within %v: the GPU driver may hang; see dmesg for NVRM and Xid lines", s.patience)
		}
	})
}

// tellOpening logs that a library is being opened, and later that it still is, until the function
// that it returns is called. A library that hangs says nothing by itself.
func (s *Sources) tellOpening(name string) (opened func()) {
	var library string
	switch name {
	case SourceDCGM:
		library = cmp.Or(s.cfg.DCGMLibrary, "libdcgm.so.4")
	case SourceNVML:
		library = cmp.Or(s.cfg.NVMLLibrary, "libnvidia-ml.so.1")
	default:
		return func() {}
	}
	s.log.Info("opening a library to read GPUs", "source", name, "library", library)
	slow := time.AfterFunc(openQuiet, func() {
		s.log.Warn("the library is still being opened; the GPU driver may hang, see dmesg for NVRM and Xid lines",
			"source", name, "library", library, "since", openQuiet, "given_up_after", s.patience)
	})
	return func() { slow.Stop() }
}
