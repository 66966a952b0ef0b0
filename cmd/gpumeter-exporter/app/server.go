// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/gpumeter/gpumeter/pkg/exporter"
)

// grace is how long requests under way may take to finish when the App stops.
const grace = 5 * time.Second

// addServer adds the HTTP server. It listens before anything is sampled, so that probes are answered from the first moment.
func (a *App) addServer(g *run.Group) error {
	mux := http.NewServeMux()
	mux.Handle("/", a.exporter.Handler())
	if a.cfg.EnablePprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: a.cfg.ReadTimeout,
		ReadTimeout:       a.cfg.ReadTimeout,
		WriteTimeout:      a.cfg.WriteTimeout,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
	}
	exporter.Guard(server, a.log)
	addresses := []string{a.cfg.Address}
	flags := &web.FlagConfig{
		WebListenAddresses: &addresses,
		WebSystemdSocket:   &a.cfg.WebSystemdSocket,
		WebConfigFile:      &a.cfg.WebConfigFile,
	}
	if err := web.Validate(a.cfg.WebConfigFile); err != nil {
		return fmt.Errorf("--web-config-file %s: %w", a.cfg.WebConfigFile, err)
	}
	serve := func() error { return web.ListenAndServe(server, flags, a.log) }
	if !a.cfg.WebSystemdSocket {
		listener, err := net.Listen("tcp", a.cfg.Address)
		if err != nil {
			return fmt.Errorf("--address %s: %w", a.cfg.Address, err)
		}
		a.addr = listener.Addr()
		serve = func() error { return web.Serve(listener, server, flags, a.log) }
	}
	close(a.bound)
	g.Add(serve, func(error) {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil && !errors.Is(err, http.ErrServerClosed) {
			a.log.Warn("requests were cut off", "after", grace, "error", err)
			_ = server.Close()
		}
	})
	return nil
}
