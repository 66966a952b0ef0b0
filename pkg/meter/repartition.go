// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/gpumeter/gpumeter/pkg/health"
)

// kindOverdue is the fault of a repartition that takes longer than judging is paused for.
const kindOverdue = "overdue"

// overdue is that fault, if there is one.
func overdue(r *health.Report) []Fault {
	if !r.Repartition.Overdue {
		return nil
	}
	return []Fault{{
		Source: SourceRepartition, Kind: kindOverdue,
		Text: fmt.Sprintf("the MIG manager has said %s since %s; judging was paused from %s to %s and goes on (look at the log of the MIG manager, and at the label nvidia.com/mig.config.state of the node)",
			r.Repartition.State, r.Repartition.Since.Format(time.RFC3339), r.Repartition.Began.Format(time.RFC3339), r.Repartition.Until.Format(time.RFC3339)),
	}}
}

// tellRepartition has the log say when judging is paused and when it goes on.
func tellRepartition(log *slog.Logger, before, now health.Repartition) {
	switch {
	case now.Paused && !before.Paused:
		log.Info("judging of GPUs is paused: they are divided anew", "mig_state", string(now.State), "until", now.Until)
	case before.Paused && !now.Paused && !now.Overdue:
		log.Info("judging of GPUs goes on", "mig_state", string(now.State), "paused_since", before.Began)
	}
}
