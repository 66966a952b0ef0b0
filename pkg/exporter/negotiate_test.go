// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const (
	textType        = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
	openMetricsType = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping="
	protobufType    = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; escaping="
)

func TestFormatNegotiation(t *testing.T) {
	for _, tc := range []struct {
		name, accept string
		format       Format
		contentType  string
	}{
		{"nothing said", "", FormatText, textType},
		{"curl", "*/*", FormatText, textType},
		{"browser", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", FormatText, textType},
		{
			"Prometheus 3", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
			FormatOpenMetrics, openMetricsType + "allow-utf-8",
		},
		{
			"Prometheus 2", "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
			FormatOpenMetrics, openMetricsType + "underscores",
		},
		{
			"Prometheus with native histograms", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
			FormatProtobuf, protobufType + "allow-utf-8",
		},
		{"text wanted more", "application/openmetrics-text;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.9", FormatText, textType},
		{"a later OpenMetrics only", "application/openmetrics-text;version=9.0.0", FormatText, textType},
		{"values", "application/openmetrics-text;version=1.0.0;escaping=values", FormatOpenMetrics, openMetricsType + "values"},
		{"dots would rename", "application/openmetrics-text;version=1.0.0;escaping=dots", FormatOpenMetrics, openMetricsType + "underscores"},
		{"nonsense", ";;;,q=,\x01", FormatText, textType},
	} {
		t.Run(tc.name, func(t *testing.T) {
			format, contentType := negotiateFormat(tc.accept)
			if format != tc.format || contentType != tc.contentType {
				t.Errorf("format %d as %q, want %d as %q", format, contentType, tc.format, tc.contentType)
			}
		})
	}
}

func TestCodingNegotiation(t *testing.T) {
	const none = codingCount
	for header, want := range map[string]coding{
		"":                               codingIdentity,
		"gzip":                           codingGzip,
		"x-gzip":                         codingGzip,
		"GZIP":                           codingGzip,
		"gzip, deflate, br":              codingGzip,
		"gzip, deflate, br, zstd":        codingZstd,
		"zstd;q=0.5, gzip":               codingGzip,
		"zstd;q=0.5, gzip; q=0.5":        codingZstd,
		"gzip;q=0":                       codingIdentity,
		"gzip;q=0, zstd":                 codingZstd,
		"deflate, br":                    codingIdentity,
		"identity":                       codingIdentity,
		"identity, gzip":                 codingGzip,
		"identity;q=1, gzip;q=0.5":       codingIdentity,
		"identity;q=0, gzip;q=0.001":     codingGzip,
		"identity;q=0":                   none,
		"*;q=0":                          none,
		"*;q=0, identity":                codingIdentity,
		"*;q=0, identity;q=0.1":          codingIdentity,
		"identity;q=0, br":               none,
		"*":                              codingGzip,
		"*, gzip;q=0":                    codingIdentity,
		"gzip;q=2":                       codingIdentity,
		"gzip;q=NaN":                     codingIdentity,
		"gzip;level=9":                   codingIdentity,
		" gzip ; q = 0.5 ,, ;q=1":        codingGzip,
		"identity;q=0, *;q=0, zstd;q=.1": codingZstd,
	} {
		got, ok := negotiateCoding(header)
		if !ok {
			got = none
		}
		if got != want {
			t.Errorf("%q: coding %d, want %d", header, got, want)
		}
	}
}

func TestPlansAreRememberedWithinBounds(t *testing.T) {
	var n negotiator
	h := http.Header{"Accept": {"text/plain"}, "Accept-Encoding": {"gzip"}}
	if n.plan(h) != n.plan(h) {
		t.Error("a client's second request is negotiated again")
	}
	for i := range 10 * maxWishes {
		n.plan(http.Header{"Accept": {fmt.Sprintf("text/x-%d", i)}})
	}
	if got := len(*n.plans.Load()); got != maxWishes {
		t.Errorf("%d plans are remembered, want %d", got, maxWishes)
	}
	long := http.Header{"Accept": {strings.Repeat("text/plain,", maxWishLength)}}
	var fresh negotiator
	if fresh.plan(long); fresh.plans.Load() != nil {
		t.Error("an endless header is remembered")
	}
}

func TestHeadersOnSeveralLines(t *testing.T) {
	var n negotiator
	p := n.plan(http.Header{
		"Accept":          {"text/plain;version=0.0.4;q=0.1", "application/openmetrics-text;version=1.0.0"},
		"Accept-Encoding": {"gzip;q=0.5", "zstd"},
	})
	if p.format != FormatOpenMetrics || p.coding != codingZstd {
		t.Errorf("format %d, coding %d", p.format, p.coding)
	}
}

func FuzzNegotiateCoding(f *testing.F) {
	for _, header := range []string{"", "gzip", "gzip;q=0.5, zstd;q=0, identity;q=0, *", "*;q=0", ",;=,q"} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		c, ok := negotiateCoding(header)
		if c >= codingCount || !ok && c != codingIdentity {
			t.Errorf("coding %d, %v", c, ok)
		}
		if c == codingZstd && !strings.Contains(strings.ToLower(header), "zstd") {
			t.Errorf("%q did not ask for zstd", header)
		}
		if c == codingGzip && !strings.ContainsAny(header, "gG*") {
			t.Errorf("%q did not ask for gzip", header)
		}
	})
}
