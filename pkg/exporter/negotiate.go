// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// plan is how one kind of client is answered.
type plan struct {
	format Format
	coding coding
	// acceptable is false where the client refuses every coding there is.
	acceptable bool
	// contentType and contentEncoding are header values; nil for no header. They are
	// shared by all responses, so their capacity leaves no room to append in place.
	contentType, contentEncoding []string
}

// wish is what a client says it can read.
type wish struct{ accept, encoding string }

const (
	maxWishes     = 64
	maxWishLength = 1024
)

// negotiator makes plans and remembers them: a server has few kinds of client, and
// each repeats the same headers for ever. The zero negotiator is ready.
type negotiator struct {
	// plans are looked through in order. Prometheus' headers are long and its own, so
	// that comparing a few is quicker than hashing one.
	plans atomic.Pointer[[]remembered]
}

type remembered struct {
	wish wish
	plan *plan
}

// plan is the answer to a request's headers.
func (n *negotiator) plan(h http.Header) *plan {
	w := wish{joined(h["Accept"]), joined(h["Accept-Encoding"])}
	if known := n.plans.Load(); known != nil {
		for i := range *known {
			if (*known)[i].wish == w {
				return (*known)[i].plan
			}
		}
	}
	return n.learn(w)
}

// learn makes a plan and remembers it while there is room.
func (n *negotiator) learn(w wish) *plan {
	p := newPlan(w)
	known := n.plans.Load()
	var plans []remembered
	if known != nil {
		plans = *known
	}
	if len(w.accept)+len(w.encoding) > maxWishLength || len(plans) >= maxWishes {
		return p
	}
	kept := wish{strings.Clone(w.accept), strings.Clone(w.encoding)}
	plans = append(plans[:len(plans):len(plans)], remembered{kept, p})
	// A plan lost to a concurrent one is made again by the next request.
	n.plans.CompareAndSwap(known, &plans)
	return p
}

// joined is a header given on several lines as one.
func joined(lines []string) string {
	switch len(lines) {
	case 0:
		return ""
	case 1:
		return lines[0]
	default:
		return strings.Join(lines, ",")
	}
}

func newPlan(w wish) *plan {
	p := &plan{}
	format, contentType := negotiateFormat(w.accept)
	p.format, p.contentType = format, []string{contentType}
	p.coding, p.acceptable = negotiateCoding(w.encoding)
	switch p.coding {
	case codingGzip:
		p.contentEncoding = []string{"gzip"}
	case codingZstd:
		p.contentEncoding = []string{"zstd"}
	}
	return p
}

// negotiateFormat is the format and the Content-Type for an Accept header.
//
// Every name on a page is valid without escaping, so it reads the same under the
// schemes that leave such names alone, and the client's choice of those is echoed.
// The scheme "dots" is not among them: it doubles underscores.
func negotiateFormat(accept string) (Format, string) {
	chosen := expfmt.NegotiateAccept(http.Header{"Accept": {accept}},
		expfmt.FmtText, expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtProtoDelim)
	format, name := FormatText, expfmt.FmtText
	switch chosen.FormatType() {
	case expfmt.TypeOpenMetrics:
		format, name = FormatOpenMetrics, expfmt.FmtOpenMetrics_1_0_0
	case expfmt.TypeProtoDelim:
		format, name = FormatProtobuf, expfmt.FmtProtoDelim
	}
	scheme := model.EscapeUnderscores
	switch chosen.ToEscapingScheme() {
	case model.NoEscaping:
		scheme = model.AllowUTF8
	case model.ValueEncodingEscaping:
		scheme = model.EscapeValues
	}
	return format, string(name) + "; " + model.EscapingKey + "=" + scheme
}

// negotiateCoding is the best content coding for an Accept-Encoding header, and
// whether there is one. Of equally welcome codings zstd comes before gzip and gzip
// before none. A wildcard stands for gzip, because who can read zstd says so.
func negotiateCoding(header string) (coding, bool) {
	const unnamed = -1
	weights := [codingCount]float64{codingIdentity: unnamed, codingGzip: unnamed, codingZstd: unnamed}
	wildcard := float64(unnamed)
	for part := range strings.SplitSeq(header, ",") {
		name, params, _ := strings.Cut(part, ";")
		weight, ok := quality(params)
		if !ok {
			continue
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip", "x-gzip":
			weights[codingGzip] = weight
		case "zstd":
			weights[codingZstd] = weight
		case "identity":
			weights[codingIdentity] = weight
		case "*":
			wildcard = weight
		}
	}
	if weights[codingGzip] == unnamed {
		weights[codingGzip] = wildcard
	}
	if weights[codingIdentity] == unnamed && wildcard == 0 {
		weights[codingIdentity] = 0
	}
	best, found := codingIdentity, weights[codingIdentity] != 0
	for _, c := range []coding{codingGzip, codingZstd} {
		if w := weights[c]; w > 0 && (w >= weights[best] || !found) {
			best, found = c, true
		}
	}
	return best, found
}

// quality is the weight in a member's parameters, 1 where there is none.
func quality(params string) (float64, bool) {
	params = strings.TrimSpace(params)
	if params == "" {
		return 1, true
	}
	name, value, ok := strings.Cut(params, "=")
	if !ok || !strings.EqualFold(strings.TrimSpace(name), "q") {
		return 0, false
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !(q >= 0 && q <= 1) {
		return 0, false
	}
	return q, true
}
