package embeddednats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// abortGrace bounds the wait for a start that was given up to come to its end.
const abortGrace = 10 * time.Second

// readyPoll is how long one look at the listeners lasts. The server itself polls
// every 25 ms, and spins when asked for less.
const readyPoll = 30 * time.Millisecond

// instance is one life of the server, from a start to a stop.
type instance struct {
	ns         *server.Server
	clientURL  string
	monitorURL string
	ports      ports

	stopOnce sync.Once
	ended    chan struct{} // closed when the server is gone
}

// launch starts a server and waits until it is ready.
func launch(ctx context.Context, opts Options, pinned ports, drops *dropReporter) (*instance, error) {
	so, err := opts.serverOptions(pinned)
	if err != nil {
		return nil, fmt.Errorf("embedded nats-server: %w", err)
	}
	if err := os.MkdirAll(so.StoreDir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded nats-server: store directory: %w", err)
	}
	ns, err := server.NewServer(so)
	if err != nil {
		return nil, fmt.Errorf("embedded nats-server: %w", err)
	}
	logger := cmp.Or(opts.Logger, slog.Default())
	log := newServerLog(logger, drops)
	ns.SetLoggerV2(log, log.enabled(slog.LevelDebug), log.enabled(LevelTrace), false)

	timeout := cmp.Or(opts.StartTimeout, DefaultStartTimeout)
	wait, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not ready after %s", timeout))
	defer cancel()

	returned := make(chan struct{})
	go func() {
		defer close(returned)
		ns.Start()
	}()
	in := &instance{ns: ns, ended: make(chan struct{})}
	if err := awaitReady(wait, ns, log, returned); err != nil {
		abortErr := in.abort(returned)
		where := net.JoinHostPort(so.Host, strconv.Itoa(max(so.Port, 0)))
		return nil, errors.Join(fmt.Errorf("embedded nats-server cannot start (listen %s, store %s): %w",
			where, so.StoreDir, err), abortErr)
	}
	in.note(so)
	return in, nil
}

// awaitReady returns nil when the server takes connections and JetStream is on.
// The server reports a failed start only to its log, and then either returns from
// Start or goes on without the part that failed.
func awaitReady(ctx context.Context, ns *server.Server, log *serverLog, returned <-chan struct{}) error {
	select {
	case text := <-log.fatal:
		return errors.New(text)
	case <-ctx.Done():
		return notReady(ctx, log)
	case <-returned:
	}
	for {
		ready := ns.ReadyForConnections(readyPoll)
		if text := takeFirst(log.fatal); text != "" {
			return errors.New(text)
		}
		if ready {
			break
		}
		if ctx.Err() != nil {
			return notReady(ctx, log)
		}
	}
	if !ns.JetStreamEnabled() {
		return errors.New(cmp.Or(takeFirst(log.failed), "JetStream is not enabled"))
	}
	return nil
}

// notReady adds to the end of the wait what the server complained about first,
// or else what it was about to do.
func notReady(ctx context.Context, log *serverLog) error {
	if text := takeFirst(log.failed); text != "" {
		return fmt.Errorf("%w: %s", context.Cause(ctx), text)
	}
	if last := log.last.Load(); last != nil {
		return fmt.Errorf("%w, last line of its log: %q", context.Cause(ctx), strings.TrimSpace(*last))
	}
	return context.Cause(ctx)
}

// abort ends a server whose start failed. A Shutdown in the middle of Start
// leaves open what Start opens afterwards, so Start is waited for first; the
// recovery of a large store cannot be interrupted, hence the bound.
func (in *instance) abort(returned <-chan struct{}) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-returned
		in.beginStop()
		<-in.ended
	}()
	timer := time.NewTimer(abortGrace)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return errors.New("it is still recovering its streams and stops when that is done")
	}
}

// note keeps the addresses that the server has got.
func (in *instance) note(so *server.Options) {
	if addr, ok := in.ns.Addr().(*net.TCPAddr); ok {
		in.ports.client = addr.Port
	}
	scheme := "nats"
	if so.TLSConfig != nil {
		scheme = "tls"
	}
	in.clientURL = addressURL(scheme, so.Host, in.ports.client)
	if addr := in.ns.MonitorAddr(); addr != nil {
		in.ports.monitor = addr.Port
		scheme := "http"
		if so.HTTPSPort != 0 {
			scheme = "https"
		}
		in.monitorURL = addressURL(scheme, so.HTTPHost, addr.Port)
	}
}

// addressURL makes a URL that works on this machine: a host that stands for every
// interface is replaced by loopback.
func addressURL(scheme, host string, port int) string {
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.To4() == nil {
			host = "::1"
		}
	}
	u := url.URL{Scheme: scheme, Host: net.JoinHostPort(host, strconv.Itoa(port))}
	return u.String()
}

func (in *instance) beginStop() {
	in.stopOnce.Do(func() {
		go func() {
			defer close(in.ended)
			in.ns.Shutdown()
			in.ns.WaitForShutdown()
		}()
	})
}

// stop ends the server and waits for it, as long as ctx allows. It may be called
// again to go on waiting.
func (in *instance) stop(ctx context.Context) error {
	in.beginStop()
	select {
	case <-in.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("embedded nats-server is still stopping: %w", context.Cause(ctx))
	}
}
