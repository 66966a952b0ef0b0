// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/exporter-toolkit/web"
)

// certificate writes what a secret of the type kubernetes.io/tls has.
func certificate(t *testing.T, folder string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert}, "ca.crt": {Type: "CERTIFICATE", Bytes: cert}, "tls.key": {Type: "PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheWebConfigIsOneThatTheProgramsTake(t *testing.T) {
	looked := 0
	eachStory(t, func(t *testing.T, _ story, r rendering) {
		if len(r.all("Secret")) == 0 {
			t.Skip("it has no web config")
		}
		looked++
		folder := t.TempDir()
		certificate(t, folder)
		text := stringAt(r.one(t, "Secret").Object, "stringData", "web-config.yml")
		text = strings.ReplaceAll(text, "/etc/gpumeter/tls/", folder+"/")
		file := filepath.Join(folder, "web-config.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := web.Validate(file); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	})
	if looked < 2 {
		t.Errorf("only %d stories have a web config", looked)
	}
}

func TestProbesAskWhatTheKubeletCanAsk(t *testing.T) {
	for values, want := range map[string]string{
		`{}`:                                "HTTP",
		`webConfig: {tls: {secretName: x}}`: "HTTPS",
		`webConfig: {tls: {secretName: x, clientAuth: RequireAndVerifyClientCert}}`:                          "port",
		`webConfig: {existingSecret: x}`:                                                                     "port",
		`webConfig: {basicAuth: {users: {p: $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG}}}`: "port",
	} {
		for name, c := range render(t, valuesOf(t, values)).containers(t) {
			got := "HTTP"
			if at(c, "livenessProbe", "tcpSocket") != nil {
				got = "port"
			} else if s := stringAt(c, "livenessProbe", "httpGet", "scheme"); s != "" {
				got = s
			}
			if got != want {
				t.Errorf("%s: %s is probed by %s, want %s", values, name, got, want)
			}
		}
	}
}
