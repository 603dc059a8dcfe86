package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/cmd/signalbox/config"
	"signalbox/embeddednats"
	"signalbox/wire"
)

// pingEvery bounds how long a dead connection goes unnoticed.
const pingEvery = 10 * time.Second

func rootOf(c config.Config) wire.Root { return wire.Root(c.Bus.Root) }

// connect starts the embedded server, or reaches the configured one.
func (n *node) connect(ctx context.Context) (err error) {
	opts := []nats.Option{
		nats.Name("signalbox " + n.config.Instance),
		nats.MaxReconnects(-1), // for ever: the register waits for the log
		// Also when it is refused: a server that starts may know no account yet.
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(500 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond),
		nats.RetryOnFailedConnect(false), nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2),
		nats.ReconnectBufSize(8 << 20),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				n.log.Warn("the connection to NATS was lost", "err", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) { n.log.Info("reconnected to NATS", "url", c.ConnectedUrlRedacted()) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			n.log.Warn("NATS reports an error", "err", err)
		}),
	}
	if n.config.NATS.External() {
		n.conn, err = Connect(n.config.NATS, opts...)
		return err
	}
	e := n.config.NATS.Embedded
	n.server, err = embeddednats.Start(ctx, n.serverOptions(e))
	if err != nil {
		return err
	}
	n.conn, err = n.server.Conn(opts...)
	if err != nil {
		return fmt.Errorf("connect to the embedded server: %w", err)
	}
	return nil
}

// serverOptions are the embedded server's. Beside a server's own configuration
// file only what differs from the default counts.
func (n *node) serverOptions(e config.Embedded) embeddednats.Options {
	o := embeddednats.Options{
		Listen: e.Listen, StoreDir: n.config.DataDir, ServerConfig: e.ServerConfig, HTTP: e.HTTP,
		MaxPayload: int64(e.MaxPayload), SyncInterval: e.SyncInterval.Std(), SyncAlways: e.SyncInterval.Always(),
		MaxBufferedMsgs: e.MaxBufferedMsgs, MaxBufferedBytes: int64(e.MaxBufferedBytes),
		MaxStore:   (int64(n.config.Bus.MaxBytes) + int64(n.config.Bus.TapMaxBytes)) / 10 * 11,
		ServerName: "signalbox", Logger: n.log,
		Dropped: func(d embeddednats.DropReport) {
			select {
			case n.drops <- d:
			default: // the reports that wait say the same
			}
		},
	}
	if e.ServerConfig != "" {
		def := config.Default().NATS.Embedded
		unset(&o.Listen, def.Listen)
		unset(&o.MaxPayload, int64(def.MaxPayload))
		unset(&o.SyncInterval, def.SyncInterval.Std())
	}
	return o
}

// unset makes a value that is the default one that was not given.
func unset[T comparable](v *T, value T) {
	if *v == value {
		*v = *new(T)
	}
}

// Connect reaches the NATS server that the configuration names.
func Connect(c config.NATS, opts ...nats.Option) (*nats.Conn, error) {
	if c.Creds != "" {
		opts = append(opts, nats.UserCredentials(c.Creds))
	}
	if c.NKey != "" {
		key, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return nil, fmt.Errorf("nats.nkey: %w", err)
		}
		opts = append(opts, key)
	}
	if c.TLS != (config.TLS{}) {
		t, err := tlsConfig(c.TLS)
		if err != nil {
			return nil, err
		}
		opts = append(opts, nats.Secure(t))
	}
	if c.Context != "" {
		nc, err := connectContext(c.Context, opts...)
		if err != nil {
			return nil, fmt.Errorf("nats.context %s: %w", c.Context, err)
		}
		return nc, nil
	}
	nc, err := nats.Connect(c.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", redact(c.URL), err)
	}
	return nc, nil
}

func tlsConfig(c config.TLS) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("nats.tls.ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("nats.tls.ca: %s holds no certificate in PEM form", c.CA)
		}
	}
	if c.Cert != "" || c.Key != "" {
		if c.Cert == "" || c.Key == "" {
			return nil, errors.New("nats.tls: cert and key go together")
		}
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("nats.tls: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}
