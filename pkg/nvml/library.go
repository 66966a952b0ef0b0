// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ErrNoLibrary says that the management library is not to be had.
var ErrNoLibrary = errors.New("the NVIDIA management library cannot be used")

// ErrNoDriver says that the library is there and the driver beneath it is not.
var ErrNoDriver = errors.New("the NVIDIA driver cannot be reached")

// soname is what the loader looks for in its own places.
const soname = "libnvidia-ml.so.1"

// elsewhere is where drivers put the library without the loader knowing: the GPU operator's
// driver container, Google's nodes, and distributions with a directory of their own.
func elsewhere() []string {
	triplet := "x86_64-linux-gnu"
	if runtime.GOARCH == "arm64" {
		triplet = "aarch64-linux-gnu"
	}
	return []string{
		"/run/nvidia/driver/usr/lib/" + triplet + "/" + soname,
		"/run/nvidia/driver/usr/lib64/" + soname,
		"/usr/local/nvidia/lib64/" + soname,
		"/usr/lib64/nvidia/" + soname,
	}
}

// library is the loaded management library.
type library struct {
	nvml.Interface
	path string
	// lookup is an error for a function that the library does not have.
	lookup func(string) error

	mu    sync.Mutex
	known map[string]bool
}

// load opens the library, from the loader's places and a few others where path is empty. It is
// never closed: the binding resolves its functions once for the life of the process.
func load(path string) (*library, error) {
	places := []string{path}
	if path == "" {
		places = append([]string{soname}, elsewhere()...)
	}
	for i, place := range places {
		handle := dl.New(place, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
		if err := handle.Open(); err != nil {
			places[i] = refused(place, err.Error())
			continue
		}
		l := &library{Interface: nvml.New(nvml.WithLibraryPath(place)), path: place, lookup: handle.Lookup}
		if full, err := handle.Path(); err == nil {
			l.path = full
		}
		if missing := l.missing(essential()); len(missing) > 0 {
			_ = handle.Close()
			return nil, fmt.Errorf("%w: %s is no management library, or one older than the R450 driver's: it lacks %s",
				ErrNoLibrary, l.path, strings.Join(missing, ", "))
		}
		return l, nil
	}
	return nil, fmt.Errorf("%w: looked for %s; install the driver on this node, "+
		"in a container use the NVIDIA runtime (runtimeClassName: nvidia) or mount the library, or name its path",
		ErrNoLibrary, strings.Join(places, ", "))
}

// refused is a place with what the loader says of it, where that is more than that nothing is
// there.
func refused(place, loader string) string {
	why := strings.TrimPrefix(loader, place+": ")
	if why == "cannot open shared object file: No such file or directory" {
		return place
	}
	return fmt.Sprintf("%s (%s)", place, why)
}

// essential are the functions without which nothing can be read.
func essential() []string {
	return []string{
		"nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID",
	}
}

// has reports whether the library has all these functions. Alternatives are joined by "|". To
// call one that it has not would end the process: the binding leaves them to the dynamic
// linker, which knows no error.
func (l *library) has(functions ...string) bool { return len(l.missing(functions)) == 0 }

func (l *library) missing(functions []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var missing []string
	for _, function := range functions {
		there, known := l.known[function]
		if !known {
			for name := range strings.SplitSeq(function, "|") {
				there = there || l.lookup(name) == nil
			}
			if l.known == nil {
				l.known = make(map[string]bool)
			}
			l.known[function] = there
		}
		if !there {
			missing = append(missing, function)
		}
	}
	return missing
}

// lacks are the functions that were wanted and are not there, for people.
func (l *library) lacks() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for function, there := range l.known {
		if !there {
			name, _, _ := strings.Cut(function, "|")
			out = append(out, name)
		}
	}
	return out
}

// initialise connects the library with the driver.
func (l *library) initialise() error {
	ret := l.Init()
	if ret == nvml.SUCCESS {
		return nil
	}
	return fmt.Errorf("%w: %s was loaded, but nvmlInit failed: %w; %s", ErrNoDriver, l.path, returned(ret), remedyOf(ret))
}
