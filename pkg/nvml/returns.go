// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// reasonOf is why there is no value where NVML returned ret.
func reasonOf(ret nvml.Return) gpu.Reason {
	switch ret {
	case nvml.SUCCESS:
		return gpu.ReasonNone
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH,
		nvml.ERROR_DEPRECATED, nvml.ERROR_VGPU_ECC_NOT_SUPPORTED:
		return gpu.ReasonNotSupported
	case nvml.ERROR_NO_PERMISSION:
		return gpu.ReasonNotPermitted
	case nvml.ERROR_NOT_FOUND:
		return gpu.ReasonNotFound
	case nvml.ERROR_NO_DATA, nvml.ERROR_NOT_READY:
		return gpu.ReasonBlank
	case nvml.ERROR_GPU_IS_LOST:
		return gpu.ReasonLost
	case nvml.ERROR_TIMEOUT:
		return gpu.ReasonTimeout
	default:
		return gpu.ReasonError
	}
}

// driverGone reports whether ret is about the library as a whole, so that every further call
// would return the same until it is initialised anew.
func driverGone(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH,
		nvml.ERROR_LIBRARY_NOT_FOUND:
		return true
	default:
		return false
	}
}

// returned names a return code. nvmlErrorString would be another call into a library that may
// be away.
type returned nvml.Return

func (r returned) Error() string {
	if text := wordsOf(nvml.Return(r)); text != "" {
		return fmt.Sprintf("NVML says: %s (%d)", text, int(r))
	}
	return fmt.Sprintf("NVML returned %d", int(r))
}

func wordsOf(ret nvml.Return) string {
	switch ret {
	case nvml.SUCCESS:
		return "success"
	case nvml.ERROR_UNINITIALIZED:
		return "not initialised"
	case nvml.ERROR_INVALID_ARGUMENT:
		return "invalid argument"
	case nvml.ERROR_NOT_SUPPORTED:
		return "not supported"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission"
	case nvml.ERROR_NOT_FOUND:
		return "not found"
	case nvml.ERROR_INSUFFICIENT_SIZE:
		return "insufficient size"
	case nvml.ERROR_INSUFFICIENT_POWER:
		return "external power cables are not properly attached"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the driver is not loaded"
	case nvml.ERROR_TIMEOUT:
		return "timed out"
	case nvml.ERROR_IRQ_ISSUE:
		return "the kernel has an interrupt problem with a GPU"
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "library not found"
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return "function not found"
	case nvml.ERROR_CORRUPTED_INFOROM:
		return "the InfoROM is corrupted"
	case nvml.ERROR_GPU_IS_LOST:
		return "the GPU is lost"
	case nvml.ERROR_RESET_REQUIRED:
		return "the GPU needs a reset"
	case nvml.ERROR_OPERATING_SYSTEM:
		return "the operating system blocks the GPU"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "driver and library have different versions"
	case nvml.ERROR_IN_USE:
		return "the GPU is in use"
	case nvml.ERROR_MEMORY:
		return "out of memory"
	case nvml.ERROR_NO_DATA:
		return "no data"
	case nvml.ERROR_INSUFFICIENT_RESOURCES:
		return "insufficient resources"
	case nvml.ERROR_NOT_READY:
		return "not ready"
	case nvml.ERROR_GPU_NOT_FOUND:
		return "no GPU found"
	case nvml.ERROR_INVALID_STATE:
		return "invalid state"
	case nvml.ERROR_UNKNOWN:
		return "unknown error"
	default:
		return ""
	}
}

// remedyOf is what to do about a library that cannot be initialised.
func remedyOf(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "load the nvidia kernel module (modprobe nvidia; see dmesg), and in a container let the NVIDIA runtime give the device files"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the driver was changed while this library was in use; restart this program, and reboot the node if nvidia-smi says the same"
	case nvml.ERROR_NO_PERMISSION:
		return "give the process access to /dev/nvidiactl and /dev/nvidia*"
	case nvml.ERROR_OPERATING_SYSTEM:
		return "see dmesg and the device cgroup: the system denies access to /dev/nvidia*"
	case nvml.ERROR_IRQ_ISSUE, nvml.ERROR_INSUFFICIENT_POWER:
		return "see dmesg, and the cables and slot of the GPU"
	default:
		return "run nvidia-smi on the node, and see dmesg for lines with NVRM"
	}
}
