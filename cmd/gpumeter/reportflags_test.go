// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// sourceOf are the flags as a command line gives them.
func sourceOf(t *testing.T, args ...string) *sourceFlags {
	t.Helper()
	f := &sourceFlags{}
	cmd := &cli.Command{
		Name: "test", Flags: slices.Concat(f.flags(), f.filterFlags()), Action: func(context.Context, *cli.Command) error { return nil },
	}
	if err := cmd.Run(t.Context(), append([]string{"test"}, args...)); err != nil {
		t.Fatal(err)
	}
	return f
}

func saved(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestRequestsCarryWhatTheFlagsSay(t *testing.T) {
	var got http.Header
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer server.Close()
	ca := saved(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	for _, tt := range []struct {
		name string
		args []string
		want map[string]string
	}{
		{"nothing", nil, map[string]string{"Authorization": "", tenantHeader: ""}},
		{"a token", []string{"--bearer-token", "s3cret"}, map[string]string{"Authorization": "Bearer s3cret"}},
		{"a token of a file", []string{"--bearer-token-file", saved(t, "t0ken\n")}, map[string]string{"Authorization": "Bearer t0ken"}},
		{"a tenant", []string{"--tenant", "team-a"}, map[string]string{tenantHeader: "team-a"}},
		{
			"a configuration, and a tenant over its own",
			[]string{"--http-config", saved(t, "basic_auth: {username: u, password: p}\nhttp_headers: {x-scope-orgid: {values: [other]}, X-More: {values: [m]}}\n"), "--tenant", "team-a"},
			map[string]string{"Authorization": "Basic dTpw", tenantHeader: "team-a", "X-More": "m"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := sourceOf(t, append([]string{"--prometheus", server.URL, "--tls-ca-file", ca}, tt.args...)...)
			transport, err := f.transport()
			if err != nil || f.check() != nil {
				t.Fatal(err, f.check())
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			for name, want := range tt.want {
				if value := strings.Join(got[http.CanonicalHeaderKey(name)], "|"); value != want {
					t.Errorf("%s is %q, want %q", name, value, want)
				}
			}
		})
	}
}

func TestAServerIsNotBelievedUnlessAsked(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	for _, tt := range []struct {
		args []string
		ok   bool
	}{{nil, false}, {[]string{"--tls-insecure-skip-verify"}, true}} {
		transport, err := sourceOf(t, tt.args...).transport()
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := transport.RoundTrip(req)
		if err == nil {
			answer.Body.Close()
		}
		if (err == nil) != tt.ok {
			t.Errorf("with %v: %v", tt.args, err)
		}
	}
}

func TestSourcesThatCannotBeAreRefused(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "--ledger DIR or --prometheus URL"},
		{[]string{"--prometheus", "localhost:9090"}, "want a URL"},
		{[]string{"--prometheus", "ftp://u:secret@h"}, "want a URL"},
		{[]string{"--prometheus", "http://h\x7f:secret"}, "no URL"},
		{[]string{"--prometheus", "http://h", "--bearer-token", "a", "--bearer-token-file", "b"}, "exclude"},
		{[]string{"--prometheus", "http://h", "--tls-key-file", "k"}, "belong together"},
		{[]string{"--prometheus", "http://h", "--tenant", "a\nb"}, "--tenant"},
	} {
		if err := sourceOf(t, tt.args...).check(); err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: %v", tt.args, err)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--http-config", "/none"}, "no such file"},
		{[]string{"--http-config", saved(t, "basic_auht: {}")}, "basic_auht"},
		{[]string{"--http-config", saved(t, "basic_auth: {username: u}"), "--bearer-token", "x"}, "give one"},
		{[]string{"--tls-ca-file", "/none"}, "/none"},
	} {
		if _, err := sourceOf(t, tt.args...).transport(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v", tt.args, err)
		}
	}
}

func TestFiltersAreWhatIsAskedFor(t *testing.T) {
	q := sourceOf(t, "--node", "n1", "--node", "n2", "--namespace", "a,b", "--pod", "p").query()
	if !slices.Equal(q.Nodes, []string{"n1", "n2"}) || !slices.Equal(q.Namespaces, []string{"a", "b"}) || !slices.Equal(q.Pods, []string{"p"}) {
		t.Errorf("query %+v", q)
	}
}
