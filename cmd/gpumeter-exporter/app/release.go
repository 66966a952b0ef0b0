// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"os"
)

// watchRelease lets go of the GPU driver on SIGUSR1 and takes it up again on the next one, so that
// the driver can be upgraded while the exporter runs.
func (a *App) watchRelease(ctx context.Context, usr1 <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-usr1:
			a.toggle(ctx)
		}
	}
}

// toggle lets go of the driver, or takes it up. What fails is tried again by the next signal.
func (a *App) toggle(ctx context.Context) {
	if !a.cfg.DCGMRelease {
		a.log.Warn("SIGUSR1 is ignored; with --dcgm-release it lets go of the GPU driver")
		return
	}
	if a.released {
		if err := a.sources.Resume(ctx); err != nil {
			a.log.Error("the GPU driver cannot be taken up again; SIGUSR1 tries once more", "error", err)
			return
		}
		a.released = false
		a.log.Info("the GPU driver is taken up again")
		return
	}
	if err := a.sources.Release(ctx); err != nil {
		a.log.Error("the GPU driver is not let go of", "error", err)
		return
	}
	a.released = true
	a.log.Info("the GPU driver is let go of; there are no values until the next SIGUSR1")
}
