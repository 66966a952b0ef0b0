// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// ComputeModeProgram is what sets the compute mode.
const ComputeModeProgram = "nvidia-smi"

const computeModePatience = 10 * time.Second

// SetExclusiveBy is Config.SetExclusive through nvidia-smi, which find is the path of.
func SetExclusiveBy(find func() (string, error), environ []string) func(context.Context, gpu.UUID, bool) error {
	return func(ctx context.Context, uuid gpu.UUID, exclusive bool) error {
		mode := "DEFAULT"
		if exclusive {
			mode = "EXCLUSIVE_PROCESS"
		}
		path, err := find()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, computeModePatience)
		defer cancel()
		run := exec.CommandContext(ctx, path, "-i", string(uuid), "-c", mode)
		run.Env = slices.Clone(environ)
		run.WaitDelay = time.Second
		out := &tail{}
		run.Stdout, run.Stderr = out, out
		if err := run.Run(); err != nil {
			return fmt.Errorf("nvidia-smi -i %s -c %s: %w%s", uuid, mode, err, out.said())
		}
		return nil
	}
}
