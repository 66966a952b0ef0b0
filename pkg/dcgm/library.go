// SPDX-License-Identifier: Apache-2.0

package dcgm

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "binding.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

const (
	// soname is what the dynamic linker is asked for where no library is named.
	soname = "libdcgm.so.4"
	// oldSoname is DCGM 3's, whose structs differ.
	oldSoname = "libdcgm.so.3"
	// oldestMajor is the oldest DCGM whose ABI the binding speaks.
	oldestMajor = 4
)

// library is one loaded libdcgm. It stays loaded for as long as the process lives: its
// threads, and calls that never come back, run in its code. Load one only once. Safe for
// concurrent use.
type library struct {
	functions *C.struct_library
	// starting has room for one: it is full while an embedded engine is started or stopped,
	// and guards owner. It is never waited for, since starting can hang.
	starting chan struct{}
	// owner is the handle whose close stops the embedded engine: the last that was started.
	owner *handle
}

// load opens libdcgm under a path, or under a name that the dynamic linker looks for; ""
// is libdcgm.so.4. The error says what was looked for, what the loader said and what to do.
func load(name string) (*library, error) {
	asked := name
	if asked == "" {
		asked = soname
	}
	const room = 4096
	message := (*C.char)(C.calloc(room, 1))
	if message == nil {
		return nil, fmt.Errorf("loading %s: out of memory", asked)
	}
	defer C.free(unsafe.Pointer(message))
	cName := C.CString(asked)
	defer C.free(unsafe.Pointer(cName))

	var incomplete C.int
	functions := C.load_library(cName, message, room, &incomplete)
	switch said := C.GoString(message); {
	case functions != nil:
	case incomplete != 0:
		return nil, fmt.Errorf("loading %s: it lacks %s: is it libdcgm of DCGM 4? Install datacenter-gpu-manager-4-core", asked, said)
	default:
		return nil, fmt.Errorf("loading %s: %s; %s", asked, said, remedyOfLoading(name))
	}
	l := &library{functions: functions, starting: make(chan struct{}, 1)}
	if version, err := l.version(); err == nil && tooOld(version) {
		err := fmt.Errorf("%s is DCGM %s, which is too old: install datacenter-gpu-manager-4-core", l.path(), version)
		C.unload_library(functions)
		return nil, err
	}
	return l, nil
}

// remedyOfLoading is what to do where the dynamic linker does not find the library.
func remedyOfLoading(name string) string {
	if name != "" {
		return "is it the path of libdcgm.so.4, for this machine's architecture?"
	}
	old := C.CString(oldSoname)
	defer C.free(unsafe.Pointer(old))
	if C.can_load(old) != 0 {
		return oldSoname + " is there, but DCGM 3 is too old: install datacenter-gpu-manager-4-core"
	}
	return "install datacenter-gpu-manager-4-core, or say where the library is with LD_LIBRARY_PATH or --dcgm-library"
}

func tooOld(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n < oldestMajor
}

// path is the file that the loader took the library from.
func (l *library) path() string {
	if path := C.library_path(l.functions); path != nil {
		return C.GoString(path)
	}
	return soname
}

// tellsPeers reports whether the library has the call for the ways between GPUs.
func (l *library) tellsPeers() bool { return l.functions.peers != nil }

// version is the library's own version, such as "4.6.0". It needs no engine.
func (l *library) version() (string, error) {
	info := new(C.struct_version_info)
	err := l.failure("dcgmVersionInfo", "", C.call_version_info(l.functions, info))
	if err != nil {
		return "", err
	}
	return versionIn(textOf(info.text[:]))
}

// versionIn finds the version among the pairs of dcgmVersionInfo, "key:value;key:value".
func versionIn(pairs string) (string, error) {
	for pair := range strings.SplitSeq(pairs, ";") {
		key, value, _ := strings.Cut(pair, ":")
		if value = strings.TrimSpace(value); strings.TrimSpace(key) == "version" && value != "" {
			return value, nil
		}
	}
	return "", fmt.Errorf("there is no version in what DCGM says of its build, %q", pairs)
}

// fieldMeta is what libdcgm knows of a field.
type fieldMeta struct {
	id    gpu.FieldID
	kind  gpu.FieldType
	level entityGroup
	// global says that the field has one value per node.
	global bool
}

// field describes a field, and reports whether this libdcgm knows it. The library knows
// none before an engine was started or connected to.
func (l *library) field(id gpu.FieldID) (fieldMeta, bool) {
	meta := C.call_field(l.functions, C.uint16_t(id))
	if meta == nil || gpu.FieldID(meta.field) != id {
		return fieldMeta{}, false
	}
	const scopeGlobal = 0
	return fieldMeta{
		id:     id,
		kind:   fieldTypeOf(uint16(uint8(meta._type))),
		level:  entityGroup(meta.entity_level),
		global: meta.scope == scopeGlobal,
	}, true
}

// embedded is how an engine inside the process is started.
type embedded struct {
	// LogFile is where the engine logs to; empty is DCGM's own choice.
	LogFile string
	// Severity is DCGM's: 0 none, 1 fatal, 2 error, 3 warning, 4 info, 5 debug, 6 verbose.
	Severity int
}

// startEmbedded starts the engine inside the process, which samples by itself. A process has
// one: where it runs already, because it was not closed or a call in it hangs, the handle is
// of that one, with the groups it has, and the engine stops with the newest handle.
func (l *library) startEmbedded(o embedded) (*handle, error) {
	err := l.init()
	if err != nil {
		return nil, err
	}
	select {
	case l.starting <- struct{}{}:
	default:
		return nil, errors.New("dcgmStartEmbedded_v2: another start or stop of the engine has not come back; restart the process if this stays")
	}
	defer func() { <-l.starting }()

	var logFile *C.char
	if o.LogFile != "" {
		logFile = C.CString(o.LogFile)
		defer C.free(unsafe.Pointer(logFile))
	}
	var id C.uint64_t
	status := C.call_start_embedded(l.functions, logFile, C.int32_t(o.Severity), &id)
	err = l.failure("dcgmStartEmbedded_v2", "", status)
	if err != nil {
		return nil, err
	}
	l.owner = &handle{library: l, id: id, embedded: true, local: true}
	return l.owner, nil
}

// connect asks the host engine at address, "host:port" or the path of a unix socket. What it
// makes there goes away with the connection.
func (l *library) connect(address string, unix bool, timeout time.Duration) (*handle, error) {
	err := l.init()
	if err != nil {
		return nil, err
	}
	cAddress := C.CString(address)
	defer C.free(unsafe.Pointer(cAddress))
	var isUnix C.uint32_t
	if unix {
		isUnix = 1
	}
	ms := C.uint32_t(min(max(timeout.Milliseconds(), 1), math.MaxInt32))
	var id C.uint64_t
	status := C.call_connect(l.functions, cAddress, isUnix, ms, &id)
	err = l.failure("dcgmConnect_v2", address, status)
	if err != nil {
		return nil, err
	}
	return &handle{library: l, id: id, local: unix}, nil
}

func (l *library) init() error {
	return l.failure("dcgmInit", "", C.call_init(l.functions))
}

// failure is the error of a call that returned status, nil for DCGM_ST_OK.
func (l *library) failure(call, on string, status C.int32_t) error {
	switch status {
	case C.int32_t(stOK):
		return nil
	case C.SYMBOL_MISSING:
		return fmt.Errorf("%s: %w", call, errMissing)
	}
	err := &returnError{call: call, on: on, code: int32(status)}
	if text := C.call_error_string(l.functions, status); text != nil {
		err.text = C.GoString(text)
	}
	return err
}
