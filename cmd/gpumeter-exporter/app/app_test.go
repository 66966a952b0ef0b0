// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// simulated is the configuration of an exporter on a simulated node, on a port of
// the system's choice.
func simulated() Config {
	c := Defaults()
	c.Source, c.Kubernetes, c.Address, c.Interval, c.Speed = "sim", true, "127.0.0.1:0", "100ms", 60
	return c
}

// aloof is the configuration without what would touch this machine: nothing is kept on its disk, and no
// socket served in its folders.
func aloof(c Config) Config {
	c.Health.LedgerDir, c.Health.Socket = "", ""
	return c
}

// logs is a place to write to from several goroutines.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is an App that serves at url until the test ends.
type running struct {
	*App
	url  string
	logs *logs
	stop func() error
}

func start(t *testing.T, cfg Config) running {
	t.Helper()
	l := &logs{}
	a, err := New(cfg, l)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run ended with %v\n%s", err, l)
		}
	})
	wait, enough := context.WithTimeout(ctx, 10*time.Second)
	defer enough()
	addr, err := a.Addr(wait)
	if err != nil {
		t.Fatalf("it does not listen: %v\n%s", err, l)
	}
	return running{a, "http://" + addr.String(), l, stop}
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// eventually waits until the page at url holds text; the time is a bound, not a measure.
func eventually(t *testing.T, url, text string) string {
	t.Helper()
	body := ""
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, body = get(t, http.DefaultClient, url); strings.Contains(body, text) {
			return body
		}
	}
	t.Fatalf("%s never said %q; last:\n%s", url, text, body)
	return ""
}

func TestExporterServesASimulatedNode(t *testing.T) {
	r := start(t, simulated())
	eventually(t, r.url+"/readyz", "ready\n")
	page := eventually(t, r.url+"/metrics", "gpumeter_allocation_share{")
	for _, want := range []string{`hostname="gpu-node-1"`, "DCGM_FI_DEV_GPU_TEMP{", `mode="mig"`, `gpumeter_source_up{source="allocations"} 1`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for path, want := range map[string]string{"/livez": "the loop turns", "/health": "OK", "/": "gpu-node-1"} {
		if code, body := get(t, http.DefaultClient, r.url+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want 200 with %q", path, code, body, want)
		}
	}
	if code, _ := get(t, http.DefaultClient, r.url+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles are served without being asked for: %d", code)
	}
	dir := r.sources.kubelet.path
	if err := r.stop(); err != nil {
		t.Errorf("a graceful stop is no error: %v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the simulated kubelet's directory is left behind: %v", err)
	}
}

func TestPodUIDsComeFromTheDeviceCheckpoint(t *testing.T) {
	cfg := simulated()
	// A busy machine must have the time to answer: a late one is a warning too.
	cfg.EnablePodUID, cfg.Interval = true, "2s"
	r := start(t, cfg)
	page := eventually(t, r.url+"/metrics", "gpumeter_allocation_share{")
	for line := range strings.SplitSeq(page, "\n") {
		if strings.HasPrefix(line, "gpumeter_allocation_share{") && !strings.Contains(line, `,pod_uid="`) {
			t.Errorf("no UID: %s", line)
		}
	}
	if strings.Contains(r.logs.String(), "level=WARN") {
		t.Errorf("warnings:\n%s", r.logs)
	}
}

func TestFirstTickOfASimulatedNodeHasNoFault(t *testing.T) {
	cfg := simulated()
	cfg.Interval = "2s"
	r := start(t, cfg)
	eventually(t, r.url+"/readyz", "ready\n")
	if strings.Contains(r.logs.String(), "level=WARN") {
		t.Errorf("warnings:\n%s", r.logs)
	}
}

func TestMissingKubeletCostsLabelsOnly(t *testing.T) {
	cfg := simulated()
	cfg.KubeletSocket, cfg.KubeletSet = filepath.Join(t.TempDir(), "no.sock"), true
	r := start(t, cfg)
	eventually(t, r.url+"/readyz", "ready\n")
	page := eventually(t, r.url+"/metrics", `gpumeter_fault{source="allocations",kind="socket_missing"} 1`)
	if !strings.Contains(page, "DCGM_FI_DEV_GPU_TEMP{") || strings.Contains(page, `pod="`) {
		t.Error("without a kubelet there must be GPU series, without pods")
	}
	if !strings.Contains(r.logs.String(), cfg.KubeletSocket) {
		t.Errorf("the log does not name the socket:\n%s", r.logs)
	}
}

func TestNotYetFlagsAreAnsweredWithAWarning(t *testing.T) {
	cfg := simulated()
	cfg.NotYet = []string{"--fake-gpus=true"}
	l := &logs{}
	if _, err := New(cfg, l); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(l.String(), "without effect yet") || !strings.Contains(l.String(), "--fake-gpus=true") {
		t.Errorf("log: %s", l)
	}
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := simulated()
	cfg.Address = taken.Addr().String()
	a, err := New(cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), cfg.Address) {
		t.Errorf("error %v, want one that names the address", err)
	}
}

func TestReloadTakesAGoodFileAndKeepsTheLastGoodOne(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counters.csv")
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("DCGM_FI_DEV_GPU_TEMP, gauge, temperature\nDCGM_FI_NO_SUCH, gauge, x\n")
	cfg := simulated()
	cfg.Collectors, cfg.CollectorsSet = file, true
	l := &logs{}
	a, err := New(cfg, l)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(l.String(), file+":2:1") {
		t.Errorf("the bad row is not named by its place:\n%s", l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ticked := make(chan error, 1)
	go func() { ticked <- a.meter.Run(ctx) }()
	defer func() { cancel(); <-ticked }()
	page := func() string {
		_, stale := a.meter.Watch()
		<-stale
		_, stale = a.meter.Watch()
		<-stale
		var b bytes.Buffer
		w := &recorder{header: http.Header{}, body: &b}
		req, _ := http.NewRequest(http.MethodGet, "/metrics", http.NoBody)
		a.exporter.Handler().ServeHTTP(w, req)
		return b.String()
	}
	has := func(step, page string, want map[string]bool) {
		t.Helper()
		for text, in := range want {
			if strings.Contains(page, text) != in {
				t.Errorf("%s: %q on the page: %v, want %v", step, text, !in, in)
			}
		}
	}
	has("at start", page(), map[string]bool{"DCGM_FI_DEV_GPU_TEMP{": true, "DCGM_FI_DEV_SM_CLOCK{": false, "gpumeter_config_last_reload_successful 1": true})
	write("DCGM_FI_DEV_SM_CLOCK, gauge, clock\n")
	a.reload(false)
	has("good file", page(), map[string]bool{"DCGM_FI_DEV_GPU_TEMP{": false, "DCGM_FI_DEV_SM_CLOCK{": true})
	write("this is no counter file\n")
	a.reload(false)
	has("bad file", page(), map[string]bool{"DCGM_FI_DEV_SM_CLOCK{": true, "gpumeter_config_last_reload_successful 0": true})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	a.reload(true)
	has("no file", page(), map[string]bool{"DCGM_FI_DEV_SM_CLOCK{": true, "gpumeter_config_last_reload_successful 0": true})
	write("DCGM_FI_DEV_GPU_TEMP, gauge, temperature\n")
	a.reload(false)
	has("good again", page(), map[string]bool{"DCGM_FI_DEV_GPU_TEMP{": true, "gpumeter_config_last_reload_successful 1": true})
}

type recorder struct {
	header http.Header
	body   io.Writer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(int)             {}
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// A pipe would block whoever opens it, and a device never ends.
func TestCounterFileThatIsNoFileIsRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{pipe, "/dev/zero", t.TempDir()} {
		cfg := simulated()
		cfg.Collectors, cfg.CollectorsSet = file, true
		if _, err := New(cfg, io.Discard); err == nil || !strings.Contains(err.Error(), file+" is not a regular file") {
			t.Errorf("%s: error %v", file, err)
		}
	}
	big := filepath.Join(t.TempDir(), "big.csv")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 1<<40); err != nil {
		t.Fatal(err)
	}
	cfg := simulated()
	cfg.Collectors, cfg.CollectorsSet = big, true
	if _, err := New(cfg, io.Discard); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a terabyte: error %v", err)
	}
}

func TestEmptyCounterFileIsAnErrorAtStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counters.csv")
	if err := os.WriteFile(file, []byte("# nothing\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := simulated()
	cfg.Collectors, cfg.CollectorsSet = file, true
	if _, err := New(cfg, io.Discard); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v, want one that names the file", err)
	}
}

func TestTLSAndBasicAuth(t *testing.T) {
	dir := t.TempDir()
	pool := certificate(t, dir)
	// bcrypt of "meter".
	const hash = "$2a$04$92Rbca/3RrlB5k211TaFAuUuiBEegh9Ttn0EomXKV9wRUSEFt2zEy"
	cfg := simulated()
	cfg.WebConfigFile = filepath.Join(dir, "web.yml")
	config := fmt.Sprintf("tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\nbasic_auth_users:\n  scraper: %s\n", hash)
	if err := os.WriteFile(cfg.WebConfigFile, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, cfg)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	url := strings.Replace(r.url, "http://", "https://", 1) + "/metrics"
	if code, _ := get(t, client, url); code != http.StatusUnauthorized {
		t.Errorf("without a password: %d, want 401", code)
	}
	req, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("scraper", "meter")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("with the password: %d, want 200", resp.StatusCode)
	}
}

// certificate writes a self-signed pair for 127.0.0.1 and returns who trusts it.
func certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gpumeter"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(cert)
	return pool
}
