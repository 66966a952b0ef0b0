// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/config"
	"github.com/urfave/cli/v3"

	"github.com/gpumeter/gpumeter/pkg/ledger"
)

// The exit codes of all that makes or checks bills beside 0, it is complete and adds up, and 1, an error.
const (
	// exitIncomplete: something is missing, and was named.
	exitIncomplete = 2
	// exitUnbalanced: the numbers contradict each other. It outweighs exitIncomplete.
	exitUnbalanced = 3
)

// tenantHeader is how Mimir, Thanos and Loki are told whose data are meant.
const tenantHeader = "X-Scope-OrgID"

// sourceFlags are the flags that say where consumption is read from.
type sourceFlags struct {
	ledgers    []string
	prometheus string

	httpConfig           string
	token, tokenFile     string
	caFile               string
	certFile, keyFile    string
	serverName           string
	insecure             bool
	tenant               string
	nodes, pods, tenants []string
}

// flags are those of the source itself.
func (f *sourceFlags) flags() []cli.Flag {
	const category = "Source"
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "ledger", Category: category, Destination: &f.ledgers,
			Usage: "`DIR` of an exporter's ledger (its --ledger-dir), or one that holds several; can be repeated"},
		&cli.StringFlag{Name: "prometheus", Category: category, Destination: &f.prometheus, Sources: cli.EnvVars("GPUMETER_PROMETHEUS_URL"),
			Usage: "`URL` of a Prometheus, Thanos or Mimir that scrapes the exporters"},
		&cli.StringFlag{Name: "bearer-token", Category: category, Destination: &f.token, Sources: cli.EnvVars("GPUMETER_BEARER_TOKEN"),
			Usage: "`TOKEN` for --prometheus; on a command line others can read it: prefer the variable or the file"},
		&cli.StringFlag{Name: "bearer-token-file", Category: category, Destination: &f.tokenFile, Usage: "`FILE` with the token for --prometheus"},
		&cli.StringFlag{Name: "tenant", Category: category, Destination: &f.tenant, Usage: "`NAME` sent as " + tenantHeader + " with --prometheus"},
		&cli.StringFlag{Name: "tls-ca-file", Category: category, Destination: &f.caFile, Usage: "`FILE` with the authorities that --prometheus is checked against"},
		&cli.StringFlag{Name: "tls-cert-file", Category: category, Destination: &f.certFile, Usage: "`FILE` with the client's certificate for --prometheus"},
		&cli.StringFlag{Name: "tls-key-file", Category: category, Destination: &f.keyFile, Usage: "`FILE` with the key of --tls-cert-file"},
		&cli.StringFlag{Name: "tls-server-name", Category: category, Destination: &f.serverName, Usage: "`NAME` that the certificate of --prometheus has to have"},
		&cli.BoolFlag{Name: "tls-insecure-skip-verify", Category: category, Destination: &f.insecure, Usage: "believe any certificate of --prometheus"},
		&cli.StringFlag{Name: "http-config", Category: category, Destination: &f.httpConfig,
			Usage: "`FILE` with an HTTP client configuration in Prometheus' own form, for basic auth, OAuth 2 and proxies"},
	}
}

// filterFlags are those of what is kept.
func (f *sourceFlags) filterFlags() []cli.Flag {
	const category = "Filter"
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "node", Category: category, Destination: &f.nodes, Usage: "only this `NODE`; can be repeated"},
		&cli.StringSliceFlag{Name: "namespace", Category: category, Destination: &f.tenants, Usage: "only what this `NAMESPACE` holds, at what it costs in the whole bill; can be repeated"},
		&cli.StringSliceFlag{Name: "pod", Category: category, Destination: &f.pods, Usage: "only what this `POD` holds, at what it costs in the whole bill; can be repeated"},
	}
}

// query is what the flags keep of a question.
func (f *sourceFlags) query() ledger.Query {
	return ledger.Query{Nodes: f.nodes, Namespaces: f.tenants, Pods: f.pods}
}

// check says what is wrong with the flags, as far as that can be told without opening anything.
func (f *sourceFlags) check() error {
	if f.prometheus == "" {
		if len(f.ledgers) == 0 {
			return errors.New("where is it to be read from? Give --ledger DIR or --prometheus URL")
		}
		return nil
	}
	u, err := url.Parse(f.prometheus)
	if err != nil {
		// The error of net/url quotes the text, in which there may be a password.
		return errors.New("--prometheus: it is no URL; want one such as http://prometheus.monitoring:9090")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--prometheus %s: want a URL such as http://prometheus.monitoring:9090", u.Redacted())
	}
	switch {
	case f.token != "" && f.tokenFile != "":
		return errors.New("--bearer-token and --bearer-token-file exclude each other: give one")
	case (f.certFile == "") != (f.keyFile == ""):
		return errors.New("--tls-cert-file and --tls-key-file belong together: give both or none")
	case strings.ContainsFunc(f.tenant, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("--tenant %q: a header cannot have these characters", f.tenant)
	}
	return nil
}

// transport is how --prometheus is talked to.
func (f *sourceFlags) transport() (http.RoundTripper, error) {
	cfg := config.DefaultHTTPClientConfig
	if f.httpConfig != "" {
		data, err := os.ReadFile(f.httpConfig)
		if err != nil {
			return nil, fmt.Errorf("--http-config: %w", err)
		}
		loaded, err := config.LoadHTTPConfig(string(data))
		if err != nil {
			return nil, fmt.Errorf("--http-config %s: %w", f.httpConfig, err)
		}
		cfg = *loaded
	}
	if f.token != "" || f.tokenFile != "" {
		if cfg.BasicAuth != nil || cfg.OAuth2 != nil || cfg.Authorization != nil {
			return nil, errors.New("--http-config has credentials as well as --bearer-token or --bearer-token-file: give one")
		}
		cfg.Authorization = &config.Authorization{Type: "Bearer", Credentials: config.Secret(f.token), CredentialsFile: f.tokenFile}
	}
	set(&cfg.TLSConfig.CAFile, f.caFile)
	set(&cfg.TLSConfig.CertFile, f.certFile)
	set(&cfg.TLSConfig.KeyFile, f.keyFile)
	set(&cfg.TLSConfig.ServerName, f.serverName)
	cfg.TLSConfig.InsecureSkipVerify = cfg.TLSConfig.InsecureSkipVerify || f.insecure
	if f.tenant != "" {
		headers := map[string]config.Header{tenantHeader: {Values: []string{f.tenant}}}
		if cfg.HTTPHeaders != nil {
			for name, header := range cfg.HTTPHeaders.Headers {
				if http.CanonicalHeaderKey(name) != http.CanonicalHeaderKey(tenantHeader) {
					headers[name] = header
				}
			}
		}
		cfg.HTTPHeaders = &config.Headers{Headers: headers}
	}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("the HTTP client of --prometheus: %w", err)
	}
	t, err := config.NewRoundTripperFromConfig(cfg, "gpumeter")
	if err != nil {
		return nil, fmt.Errorf("the HTTP client of --prometheus: %w", err)
	}
	return t, nil
}

func set(to *string, value string) {
	if value != "" {
		*to = value
	}
}

// openLedgers opens all that --ledger names, each folder once.
func (f *sourceFlags) openLedgers(now func() time.Time) ([]*ledger.Reader, error) {
	var readers []*ledger.Reader
	for _, dir := range f.ledgers {
		found, err := ledger.FindLedgers(dir)
		if err != nil {
			return nil, fmt.Errorf("--ledger: %w", err)
		}
		for _, one := range found {
			reader, err := ledger.OpenReader(one)
			if err != nil {
				return nil, fmt.Errorf("--ledger: %w", err)
			}
			known := func(r *ledger.Reader) bool { return r.Dir() == reader.Dir() }
			if !slices.ContainsFunc(readers, known) {
				readers = append(readers, reader.At(now))
			}
		}
	}
	return readers, nil
}
