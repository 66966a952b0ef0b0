// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"strings"
	"testing"
)

func TestAHostEngineIsWrittenInManyWays(t *testing.T) {
	for text, want := range map[string]string{
		"unix:///run/nvidia/hostengine": "unix:///run/nvidia/hostengine",
		"/run/nvidia/hostengine":        "unix:///run/nvidia/hostengine",
		"unix:///run/with space":        "unix:///run/with space",
		"tcp://node-1:7777":             "tcp://node-1:7777",
		"tcp://node-1":                  "tcp://node-1:5555",
		"node-1:7777":                   "tcp://node-1:7777",
		" localhost ":                   "tcp://localhost:5555",
		"10.0.0.7":                      "tcp://10.0.0.7:5555",
		"10.0.0.7:65535":                "tcp://10.0.0.7:65535",
		"[::1]":                         "tcp://[::1]:5555",
		"[::1]:7777":                    "tcp://[::1]:7777",
		"::1":                           "tcp://[::1]:5555",
		"tcp://[fe80::1%eth0]:1":        "tcp://[fe80::1%eth0]:1",
		"nvidia-dcgm.gpu-operator.svc":  "tcp://nvidia-dcgm.gpu-operator.svc:5555",
	} {
		e, err := ParseEndpoint(text)
		if err != nil || e.String() != want || e.Embedded() {
			t.Errorf("ParseEndpoint(%q) = %v, %v; want %s", text, e, err, want)
			continue
		}
		if again, err := ParseEndpoint(e.String()); err != nil || again != e {
			t.Errorf("%q is written %s, which reads %v, %v", text, e, again, err)
		}
	}
	if e := (Endpoint{}); !e.Embedded() || e.String() != "embedded" {
		t.Errorf("the zero endpoint is %v", e)
	}
}

func TestAHostEngineWrittenWronglyIsAnErrorWithARemedy(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "no name of a host",
		"  ":                           "no name of a host",
		":5555":                        "no name of a host",
		"tcp://":                       "no name of a host",
		"a b":                          "no name of a host",
		"user@node":                    "no name of a host",
		"node:0":                       "no number from 1 to 65535",
		"node:":                        "no number from 1 to 65535",
		"node:65536":                   "no number from 1 to 65535",
		"node:port":                    "no number from 1 to 65535",
		"node:1:2":                     "no host and port",
		"[::1":                         "no host and port",
		"[::1]x":                       "no host and port",
		"[node:1]:5":                   "no IPv6 address",
		"node/path":                    "no name of a host",
		"unix://run/socket":            "must begin with /",
		"unix://":                      "must begin with /",
		"/":                            "must begin with /",
		"unix:///a\x00b":               "zero byte",
		"vsock://3:5555":               "neither",
		"http://node:5555":             "neither",
		"/" + strings.Repeat("x", 107): "at most 107 bytes",
	} {
		e, err := ParseEndpoint(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "write unix:///") {
			t.Errorf("ParseEndpoint(%q) = %v, %v; want an error with %q", text, e, err, want)
		}
	}
}

func FuzzParseEndpoint(f *testing.F) {
	for _, seed := range []string{"unix:///run/x", "/x", "tcp://h:1", "h", "[::1]:2", "::1", "h:", "[", "]", "a://b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseEndpoint(text)
		if err != nil {
			if e != (Endpoint{}) {
				t.Fatalf("an endpoint %v beside the error %v", e, err)
			}
			return
		}
		if e.Embedded() {
			t.Fatalf("%q is the embedded engine", text)
		}
		if again, err := ParseEndpoint(e.String()); err != nil || again != e {
			t.Fatalf("%q is written %q, which reads %v, %v", text, e, again, err)
		}
	})
}
