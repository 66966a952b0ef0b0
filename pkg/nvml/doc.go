// SPDX-License-Identifier: Apache-2.0

// Package nvml reads GPUs through NVIDIA's management library alone, for nodes without DCGM:
// the same fields under DCGM's numbers and units, MIG, errors as events, and on Hopper and
// newer the profiling fields. What NVML does not tell is absent, never zero.
//
// No call of NVML can be cancelled. Each GPU has a lane of its own, on which at most one call
// is under way; a GPU whose call does not come back is in trouble alone.
package nvml
