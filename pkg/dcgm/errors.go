// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"errors"
	"strconv"
)

// errMissing is in the chain of an error of a call that this libdcgm does not have,
// because it is older than the call.
var errMissing = errors.New("this libdcgm is too old to have the call")

// errClosed is in the chain of an error of a call on a handle that was closed.
var errClosed = errors.New("the connection to DCGM was closed")

// errInFlight is in the chain of close's error while calls on the handle have not come
// back: the engine or connection is let go of by the last of them.
var errInFlight = errors.New("calls have not come back from DCGM")

// DCGM's return codes that the package tells apart.
const (
	stOK                    int32 = 0
	stMemory                int32 = -4
	stNotSupported          int32 = -6
	stUninitialized         int32 = -10
	stTimeout               int32 = -11
	stVersionMismatch       int32 = -12
	stUnknownField          int32 = -13
	stNoData                int32 = -14
	stStaleData             int32 = -15
	stNotWatched            int32 = -16
	stNoPermission          int32 = -17
	stGPUIsLost             int32 = -18
	stGPUNotSupported       int32 = -22
	stConnectionNotValid    int32 = -21
	stMaxLimit              int32 = -24
	stRequiresRoot          int32 = -29
	stInsufficientSize      int32 = -31
	stFieldUnsupportedByAPI int32 = -32
	stModuleNotLoaded       int32 = -33
	stProfilingNotSupported int32 = -36
	stInsufficientDriver    int32 = -44
	stNVMLNotLoaded         int32 = -56
	stNVMLDriverTimeout     int32 = -57
	stGPUsDetached          int32 = -67
)

// The kinds of returnError, as label values.
const (
	kindConnection   = "connection"
	kindTimeout      = "timeout"
	kindLost         = "lost"
	kindPermission   = "permission"
	kindNotSupported = "not_supported"
	kindError        = "error"
)

// returnError is a call that DCGM answered with other than DCGM_ST_OK.
type returnError struct {
	// call is DCGM's name of the function, on what it was asked about, or empty.
	call, on string
	// code is the dcgmReturn_t.
	code int32
	// text is what libdcgm says the code means, or empty.
	text string
}

// Error says what failed, on what, why, and what can be done where that is known.
func (e *returnError) Error() string {
	what := e.call
	if e.on != "" {
		what += " of " + e.on
	}
	why := e.text
	if why == "" {
		why = "unknown error"
	}
	what += ": " + why + " (" + strconv.Itoa(int(e.code)) + ")"
	if remedy := remedyOf(e.code); remedy != "" {
		what += "; " + remedy
	}
	return what
}

// Kind sorts the error for counting: "connection", "timeout", "lost", "permission",
// "not_supported" or "error".
func (e *returnError) Kind() string {
	switch e.code {
	case stConnectionNotValid, stUninitialized:
		return kindConnection
	case stTimeout, stNVMLDriverTimeout:
		return kindTimeout
	case stGPUIsLost, stGPUsDetached:
		return kindLost
	case stNoPermission, stRequiresRoot:
		return kindPermission
	case stNotSupported, stUnknownField, stGPUNotSupported, stFieldUnsupportedByAPI,
		stModuleNotLoaded, stProfilingNotSupported, stInsufficientDriver:
		return kindNotSupported
	default:
		return kindError
	}
}

func remedyOf(code int32) string {
	switch code {
	case stConnectionNotValid:
		return "is the host engine (nv-hostengine) running, and does its address answer?"
	case stUninitialized:
		return "the engine is not running and must be started again"
	case stVersionMismatch:
		return "libdcgm and the host engine must both be DCGM 4"
	case stNoPermission:
		return "profiling needs CAP_SYS_ADMIN"
	case stRequiresRoot:
		return "DCGM wants to be asked by root"
	case stMaxLimit:
		return "an engine has 64 groups and 64 field groups for all its clients: end those that are not used"
	case stModuleNotLoaded:
		return "is the DCGM module installed beside libdcgm (datacenter-gpu-manager-4-core, -proprietary), and does the hardware have what it reads?"
	case stInsufficientDriver:
		return "a newer NVIDIA driver is needed"
	case stNVMLNotLoaded:
		return "is the NVIDIA driver loaded, and libnvidia-ml.so.1 to be found?"
	case stGPUsDetached:
		return "the driver was detached and must be attached again"
	default:
		return ""
	}
}

// returned is the code of a returnError in err's chain, or 0.
func returned(err error) int32 {
	if e, ok := errors.AsType[*returnError](err); ok {
		return e.code
	}
	return stOK
}
