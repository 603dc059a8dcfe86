package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"signalbox/bridge"
)

// httpServer serves /metrics and /healthz.
type httpServer struct {
	listener net.Listener
	server   *http.Server
}

// listenHTTP takes the address; "" serves nothing.
func listenHTTP(address string, b *bridge.Bridge) (*httpServer, error) {
	if address == "" {
		return &httpServer{}, nil
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("http.listen: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(b.Collectors()...)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", healthz(b.Health()))
	return &httpServer{listener: l, server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}, nil
}

// healthz is 200 when nothing is red, and says what is.
func healthz(h *bridge.Health) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		red := h.Red()
		w.Header().Set("content-type", "application/json")
		status := "ok"
		if len(red) > 0 {
			status = "red"
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		// A client that went away is no fault of ours.
		_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "red": red})
	}
}

func (h *httpServer) address() string {
	if h.listener == nil {
		return ""
	}
	return h.listener.Addr().String()
}

// serve answers until ctx ends.
func (h *httpServer) serve(ctx context.Context) error {
	if h.listener == nil {
		return nil
	}
	defer context.AfterFunc(ctx, func() { _ = h.close() })()
	if err := h.server.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("http: %w", err)
	}
	return nil
}

func (h *httpServer) close() error {
	if h.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return h.server.Shutdown(ctx)
}
