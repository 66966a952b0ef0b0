// SPDX-License-Identifier: Apache-2.0

#include "sim.h"

EXPORT const char *errorString(int32_t code)
{
    static const char *const texts[] = {
        "Success", "Bad parameter passed to function", NULL, "Generic unspecified error", "Out of memory",
        "Setting not configured", "Feature not supported", "DCGM initialization error", "NVML error",
        "Object is in a pending state", "Object is in an undefined state", "Timeout", "API version mismatch",
        "Unknown field identifier", "No data is available", "Only stale data is available",
        "Field is not being watched", "No permission", "GPU is lost", "GPU requires a reset", "Function not found",
        "Host engine connection invalid/disconnected", "GPU not supported", "Incompatible group", "Max limit reached",
        "Library not found", "Duplicate key", "GPU in sync boost group", "GPU not in sync boost group",
        "Requires root", "NVVS error", "Insufficient input size", "Field not supported by this API",
        "Module not loaded", "In use", "Group is empty", "Profiling not supported", "Profiling library error",
        "Profiling multi-pass", "Diagnostic already running", "Diagnostic bad JSON", "Diagnostic bad launch",
        "Unused", "Diagnostic threshold exceeded", "Insufficient driver version", "GPU instance not found",
        "Compute instance not found", "Child not killed", "Third-party library error", "Insufficient resources",
        "Plugin exception", "NVVS isolate error", "NVVS binary not found", "NVVS killed", "Paused",
        "Already initialized", "NVML is not loaded", "Driver timeout", "No available test",
    };
    static const char *const later[] = {
        "Multi-node connection not available", "Multi-node unauthorized", "Remote SSH connection failed",
        "Child spawn failed", "File I/O error", "Child signal received", "Caller already stopped",
        "Diagnostic stopped", "GPUs are detached",
    };
    int last = SIM_VERSION >= 40500 ? 67 : SIM_VERSION >= 40402 ? 65 : SIM_VERSION >= 40301 ? 64 : 58;

    if (code > 0 || code < -last)
        return NULL;
    return code >= -58 ? texts[-code] : later[-code - 59];
}
