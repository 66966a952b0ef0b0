// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// server is where the API server listens; the kubelet and the test know it by this address.
const server = "https://127.0.0.1:6443"

// users may talk to the API server, each with its name as its token.
func users() map[string]string {
	return map[string]string{
		"admin":                          `"system:masters"`,
		"system:node:" + nodeName:        `"system:nodes"`,
		"system:kube-scheduler":          "",
		"system:kube-controller-manager": "",
		exporter:                         "",
	}
}

// writeCredentials makes all that the control plane needs to trust itself: ca.crt, server.crt,
// server.key, accounts.key, tokens.csv and for each user a kubeconfig.
func writeCredentials(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := writeCertificates(dir); err != nil {
		return err
	}
	var tokens strings.Builder
	for user, groups := range users() {
		fmt.Fprintf(&tokens, "%s,%s,%s,%s\n", token(user), user, user, groups)
		if err := os.WriteFile(filepath.Join(dir, kubeconfig(user)), []byte(kubeconfigText(dir, user)), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte(tokens.String()), 0o600)
}

func token(user string) string      { return "token-" + strings.ReplaceAll(user, ":", "-") }
func kubeconfig(user string) string { return strings.ReplaceAll(user, ":", "-") + ".kubeconfig" }

func kubeconfigText(dir, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: here, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: me, user: {token: %q}}]
contexts: [{name: this, context: {cluster: here, user: me}}]
current-context: this
`, server, filepath.Join(dir, "ca.crt"), token(user))
}

func writeCertificates(dir string) error {
	const life = 24 * time.Hour
	keys := map[string]*ecdsa.PrivateKey{}
	for _, name := range []string{"ca", "server", "accounts"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return err
		}
		if err := writePEM(filepath.Join(dir, name+".key"), "EC PRIVATE KEY", der); err != nil {
			return err
		}
		keys[name] = key
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gpumeter-e2e"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	api := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	for name, certificate := range map[string]*x509.Certificate{"ca": authority, "server": api} {
		der, err := x509.CreateCertificate(rand.Reader, certificate, authority, &keys[name].PublicKey, keys["ca"])
		if err != nil {
			return err
		}
		if err := writePEM(filepath.Join(dir, name+".crt"), "CERTIFICATE", der); err != nil {
			return err
		}
	}
	return nil
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
