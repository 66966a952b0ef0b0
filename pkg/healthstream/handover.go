// SPDX-License-Identifier: Apache-2.0

package healthstream

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/pkg/health"
	"github.com/gpumeter/gpumeter/pkg/healthstream/healthv1"
)

// HandOver hands on what a reporter has heard. A condition that makes no sense costs itself only.
func (v service) HandOver(_ context.Context, r *healthv1.HandOverRequest) (*healthv1.HandOverResponse, error) {
	s := v.server
	switch n := len(r.GetConditions()); {
	case s.cfg.Witnesses == nil:
		return nil, status.Error(codes.Unimplemented, "this server takes no conditions of others")
	case r.GetReporter() == "" || len(r.GetReporter()) > maxWords:
		return nil, status.Errorf(codes.InvalidArgument, "a reporter's name has 1 to %d bytes, not %d", maxWords, len(r.GetReporter()))
	case n > maxFacts:
		return nil, status.Errorf(codes.InvalidArgument, "%d conditions: one reporter may hand over %d", n, maxFacts)
	}
	var seen []health.Condition
	var answer healthv1.HandOverResponse
	for i, c := range r.GetConditions() {
		condition := decodeCondition(c)
		if err := witnessed(condition); err != nil {
			answer.Refused = append(answer.Refused, fmt.Sprintf("condition %d (%q on %q): %v", i+1, c.GetKind(), c.GetGpu(), err))
			continue
		}
		seen = append(seen, condition)
	}
	if len(seen) > 0 {
		s.cfg.Witnesses.Witness(r.GetReporter(), seen)
	}
	return &answer, nil
}

// witnessed says what is wrong with a condition that is handed over.
func witnessed(c health.Condition) error {
	switch {
	case c.GPU == "":
		return errors.New("it names no GPU")
	case c.GPU.IsMIG():
		return errors.New("it names a MIG device (give its GPU, and the instance)")
	case c.XID < 1 || c.XID > health.MaxXID || c.Kind != health.XIDKind(c.XID):
		return errors.New("only XIDs are handed over; everything else the server sees itself")
	case c.Last.IsZero():
		return errors.New("it has no time")
	}
	return nil
}
