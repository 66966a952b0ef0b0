// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/gpumeter/gpumeter/pkg/deviceplugin"
	"github.com/gpumeter/gpumeter/pkg/exporter"
)

const (
	// grace is how long requests under way may take to finish at the end.
	grace = 2 * time.Second
	// requestPatience bounds reading a request and writing its answer.
	requestPatience = 10 * time.Second
)

// notReady says why the node's devices are not all with the kubelet, empty when they are, or there are
// none or no kubelet to register with.
func (o observed) notReady(s *status, m deviceplugin.Stats) string {
	if !s.set {
		return "the node's GPUs or their verdicts are not known yet"
	}
	if !o.registers {
		return ""
	}
	for _, name := range s.wanted {
		i := slices.IndexFunc(m.Resources, func(r deviceplugin.ResourceStats) bool { return r.Name == name })
		switch {
		case (i < 0 || !m.Resources[i].Served) && m.PrepareError != "":
			return name + " is not served yet: " + m.PrepareError
		case i < 0 || !m.Resources[i].Served:
			return name + " is not served yet"
		case !m.Resources[i].Registered && m.Resources[i].LastError == "":
			return name + " is not registered with the kubelet yet"
		case !m.Resources[i].Registered:
			return name + " is not registered with the kubelet: " + m.Resources[i].LastError
		}
	}
	return ""
}

// handler serves /metrics and the probes.
func handler(from observed, log *slog.Logger) http.Handler {
	registry := prometheus.NewRegistry()
	if err := registry.Register(newCollector(from)); err != nil {
		log.Error("metrics", "error", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", buffered(promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), EnableOpenMetrics: true,
	})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := from.notReady(from.status(), from.manager()); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, `<!DOCTYPE html><title>gpumeter-device-plugin</title><h1>gpumeter-device-plugin</h1>`+
			`<p><a href="metrics">metrics</a> <a href="readyz">readyz</a> <a href="healthz">healthz</a></p>`)
	})
	return mux
}

// buffered makes the answers of h one after the other and writes each at its client's pace, so that slow clients hold nothing but
// bytes. A client that went away is no fault.
func buffered(h http.Handler) http.HandlerFunc {
	var making sync.Mutex
	made := func(w http.ResponseWriter, r *http.Request) *bytes.Buffer {
		making.Lock()
		defer making.Unlock()
		answer := &answer{ResponseWriter: w, code: http.StatusOK}
		h.ServeHTTP(answer, r)
		w.Header().Set("Content-Length", strconv.Itoa(answer.body.Len()))
		w.WriteHeader(answer.code)
		return &answer.body
	}
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = made(w, r).WriteTo(w)
	}
}

// answer keeps a body and its status instead of sending them.
type answer struct {
	http.ResponseWriter

	code int
	body bytes.Buffer
}

func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

func (a *answer) WriteHeader(code int) { a.code = code }

// webServer is the plugin's HTTP server, listening.
type webServer struct {
	server   *http.Server
	listener net.Listener
	config   string
	log      *slog.Logger
}

// listenWeb listens, so that an address that is taken is told at the start.
func listenWeb(ctx context.Context, c config, h http.Handler, log *slog.Logger) (*webServer, error) {
	if err := web.Validate(c.webConfigFile); err != nil {
		return nil, fmt.Errorf("--web-config-file %s: %w", c.webConfigFile, err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.address)
	if err != nil {
		return nil, fmt.Errorf("--address %s: %w", c.address, err)
	}
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: requestPatience, ReadTimeout: requestPatience, WriteTimeout: requestPatience,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	exporter.Guard(server, log)
	return &webServer{server: server, listener: listener, config: c.webConfigFile, log: log}, nil
}

// run serves until ctx ends, and returns nil then.
func (w *webServer) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if err := w.server.Shutdown(bounded); err != nil {
			_ = w.server.Close()
		}
	})
	defer stop()
	none := false
	err := web.Serve(w.listener, w.server, &web.FlagConfig{WebSystemdSocket: &none, WebConfigFile: &w.config}, w.log)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve metrics: %w", err)
}
