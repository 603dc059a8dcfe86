package embeddednats

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// ErrShutdown is returned by the methods of a Server after Shutdown.
var ErrShutdown = errors.New("embedded nats-server is shut down")

// Server is an embedded nats-server. Its methods may be called from any
// goroutine.
type Server struct {
	opts  Options
	drops *dropReporter

	// turn holds one token: Restart and Shutdown take it, so that they follow each
	// other and a waiting one still obeys its context.
	turn chan struct{}

	mu     sync.Mutex // guards what follows
	life   *instance  // the last one that became ready; may have ended
	closed bool
}

// Start starts a server and returns when it takes connections and JetStream is
// enabled, at most opts.StartTimeout later or when ctx is done. On an error
// nothing is left running; only a store that is still being recovered some
// seconds after the wait is over ends later, and the error says so.
//
// An error that comes from the server carries its text, for example that the
// address is in use. ctx bounds the start alone, not the life of the server.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("embedded nats-server options: %w", err)
	}
	drops := newDropReporter(opts.Dropped)
	life, err := launch(ctx, opts, ports{}, drops)
	if err != nil {
		drops.close()
		return nil, err
	}
	s := &Server{opts: opts, drops: drops, life: life, turn: make(chan struct{}, 1)}
	return s, nil
}

// Restart stops the server and starts it again on the same ports and the same
// store directory. Connected clients are cut off and reconnect. If the start
// fails the server stays stopped, and Restart may be called again. It returns
// ErrShutdown after Shutdown, and the cause of ctx when that ends first.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.takeTurn(ctx); err != nil {
		return err
	}
	defer s.endTurn()
	life, closed := s.current()
	if closed {
		return ErrShutdown
	}
	if err := life.stop(ctx); err != nil {
		return err
	}
	next, err := launch(ctx, s.opts, life.ports, s.drops)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.life = next
	s.mu.Unlock()
	return nil
}

// Shutdown stops the server: JetStream writes and syncs its streams, then
// connections and listeners are closed, then the queued drop reports are
// delivered. It returns when all of that is done, or with the cause of ctx when
// that ends first; the server then goes on stopping, and a further call waits for
// it. A call after a completed one does nothing.
//
// Drain client connections before: messages that the server has not yet stored,
// and therefore not acknowledged, are lost.
func (s *Server) Shutdown(ctx context.Context) error {
	if err := s.takeTurn(ctx); err != nil {
		return err
	}
	defer s.endTurn()
	life, closed := s.current()
	if closed {
		return nil
	}
	if err := life.stop(ctx); err != nil {
		return err
	}
	s.drops.close()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return nil
}

func (s *Server) takeTurn(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("embedded nats-server is busy restarting or stopping: %w", context.Cause(ctx))
	}
}

func (s *Server) endTurn() { <-s.turn }

func (s *Server) current() (life *instance, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life, s.closed
}

// ClientURL is the address for clients on this machine, with the port that was
// picked. It stays the same for the life of the Server.
func (s *Server) ClientURL() string {
	life, _ := s.current()
	return life.clientURL
}

// MonitorURL is the address of the monitoring pages, "" when they are off.
func (s *Server) MonitorURL() string {
	life, _ := s.current()
	return life.monitorURL
}

// Running reports whether the server is up with JetStream enabled. It is false
// during Restart, after Shutdown, and when the server has disabled JetStream
// because its disk failed.
func (s *Server) Running() bool {
	life, _ := s.current()
	return life.ns.Running() && life.ns.JetStreamEnabled()
}

// Version is the version of the embedded nats-server, such as "2.15.2".
func (s *Server) Version() string { return server.VERSION }

// reconnectWait is short because the server is in this process: after a Restart
// there is no network to spare.
const reconnectWait = 100 * time.Millisecond

// Conn connects a client over TCP to ClientURL and keeps it across Restart (it
// reconnects for ever). opts come after, and override, these defaults: give
// nats.UserInfo, nats.RootCAs and the like when the configuration asks for them.
// A refused login is nats.ErrAuthorization. The caller closes the connection
// before Shutdown.
//
// TCP and not memory, because the in-process pipe has no buffer: reading a stream
// through it is a third slower, and a refused login is lost in it.
func (s *Server) Conn(opts ...nats.Option) (*nats.Conn, error) {
	if _, closed := s.current(); closed {
		return nil, ErrShutdown
	}
	defaults := []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(0, 0)}
	nc, err := nats.Connect(s.ClientURL(), append(defaults, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the embedded nats-server: %w", err)
	}
	return nc, nil
}

// InProcessConn opens one side of a pipe to the server as it is now. It makes
// Server a provider for nats.InProcessServer that outlives a Restart, for a
// client that cannot satisfy the TLS of the configured listener.
func (s *Server) InProcessConn() (net.Conn, error) {
	life, closed := s.current()
	if closed {
		return nil, ErrShutdown
	}
	return life.ns.InProcessConn()
}
