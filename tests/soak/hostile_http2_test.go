// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gpumeter/gpumeter/cmd/gpumeter-exporter/app"
)

// attackedOverTLS is an exporter that speaks HTTP/2.
func attackedOverTLS(t *testing.T) *victim {
	t.Helper()
	file := webConfig(t)
	return attackedBy(t, &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}, "https://", func(c *app.Config) {
		c.WebConfigFile, c.WriteTimeout = file, 2*time.Second
	})
}

// webConfig is a configuration with a certificate of its own.
func webConfig(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"cert.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		"key.pem":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		"web.yaml": []byte("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "web.yaml")
}

// frames is a connection of HTTP/2 by hand.
type frames struct {
	*http2.Framer

	conn *tls.Conn
	head []byte
}

// dial speaks as far as requests can be sent. The window is what the server may send of each answer.
func (v *victim) dial(window uint32) *frames {
	v.t.Helper()
	conn, err := tls.Dial("tcp", v.address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { _ = conn.Close() })
	f := &frames{Framer: http2.NewFramer(conn, conn), conn: conn}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{{":method", "GET"}, {":path", "/metrics"}, {":scheme", "https"}, {":authority", "node"}} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			v.t.Fatal(err)
		}
	}
	f.head = block.Bytes()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		v.t.Fatal(err)
	}
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
		v.t.Fatal(err)
	}
	return f
}

// ask sends a request. The table of heads is not used again, so that each request is whole in itself.
func (f *frames) ask(stream uint32) error {
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.head, EndStream: true, EndHeaders: true})
}

// TestRequestsThatAreResetAtOnceCostNobodyElseAPage is what is known as rapid reset: ten thousand requests, each taken back at once.
func TestRequestsThatAreResetAtOnceCostNobodyElseAPage(t *testing.T) {
	v := attackedOverTLS(t)
	for range 4 {
		f := v.dial(65535)
		go func() { _, _ = io.Copy(io.Discard, f.conn) }()
		go func() {
			for stream := uint32(1); stream < 20000; stream += 2 {
				if f.ask(stream) != nil || f.WriteRSTStream(stream, http2.ErrCodeCancel) != nil {
					return
				}
			}
		}()
	}
	v.goesOn()
}

// TestAConnectionHasFewRequestsAtOnce lets the server send nothing, so that each answer waits: only so many are begun, the others are refused, and all
// of them end with the write time.
func TestAConnectionHasFewRequestsAtOnce(t *testing.T) {
	v := attackedOverTLS(t)
	f := v.dial(0)
	const asked = 200
	refused, begun := map[uint32]bool{}, map[uint32]bool{}
	limit := uint32(0)
	done := make(chan error, 1)
	go func() {
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				done <- err
				return
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if value, ok := frame.Value(http2.SettingMaxConcurrentStreams); ok {
					limit = value
				}
			case *http2.RSTStreamFrame:
				if frame.ErrCode == http2.ErrCodeRefusedStream {
					refused[frame.StreamID] = true
				}
			case *http2.HeadersFrame:
				begun[frame.StreamID] = true
			case *http2.GoAwayFrame:
				done <- fmt.Errorf("it says goodbye: %v", frame.ErrCode)
				return
			}
		}
	}()
	for i := range asked {
		if f.ask(uint32(2*i+1)) != nil {
			break
		}
	}
	v.goesOn()
	select {
	case err := <-done:
		t.Logf("the connection ended: %v", err)
	case <-time.After(5 * time.Second):
		_ = f.conn.Close()
		<-done
	}
	if limit == 0 || limit > 16 || len(begun) > int(limit)*4 || len(refused)+len(begun) == 0 {
		t.Errorf("the server says %d at once, has begun %d and refused %d of %d", limit, len(begun), len(refused), asked)
	}
}
