package embeddednats

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// What the zero value of each option stands for.
const (
	DefaultListen           = "127.0.0.1:4222"
	DefaultMaxPayload       = 1 << 20
	DefaultSyncInterval     = time.Second
	DefaultMaxBufferedMsgs  = 2_000_000
	DefaultMaxBufferedBytes = 1 << 30
	// DefaultMaxStore holds a stream of 8 GiB, one of 2 GiB, and a tenth.
	DefaultMaxStore     = 11 << 30
	DefaultMaxMemory    = 256 << 20
	DefaultStartTimeout = 30 * time.Second
)

// Options configures the embedded server. The zero value of every field but
// StoreDir means its default.
//
// Where ServerConfig names a file, a value is taken from the first of these that
// has one: the option here, the file, the default.
type Options struct {
	// Listen is the client address, "host:port". Port 0 picks a free one.
	// Default "127.0.0.1:4222".
	Listen string

	// StoreDir is the directory under which JetStream keeps its files, in a
	// folder "jetstream" that the server makes. Required: there is no default,
	// since the server's own would be a temporary directory.
	StoreDir string

	// ServerConfig is the path of a nats-server configuration file (accounts,
	// TLS, clusters, anything the server knows). Its store_dir must be absent or
	// the same as StoreDir; its log and pid settings are without effect, and
	// JetStream is on whatever it says. It is read again by Restart.
	ServerConfig string

	// HTTP is the monitoring address, "host:port". Port 0 picks a free one.
	// Default: no monitoring.
	HTTP string

	// MaxPayload is the largest message in bytes, headers included. Default 1 MiB.
	MaxPayload int64

	// SyncInterval is the longest time between a write to a stream and its fsync.
	// Default 1 s (the server's own default is 2 min).
	SyncInterval time.Duration

	// SyncAlways makes every write to a stream an fsync, before its PubAck.
	SyncAlways bool

	// MaxBufferedMsgs and MaxBufferedBytes bound what waits in memory to be
	// stored, for each stream. Beyond them plain publishes are dropped and
	// reported, and publishes that wait for a PubAck are refused with status 429.
	// Defaults 2,000,000 messages and 1 GiB (the server's own 10,000 messages and
	// 128 MiB lose part of a burst that a client sends without waiting).
	MaxBufferedMsgs  int
	MaxBufferedBytes int64

	// MaxStore and MaxMemory bound all file streams and all memory streams and
	// consumers together, in bytes. Defaults 11 GiB and 256 MiB.
	MaxStore  int64
	MaxMemory int64

	// ServerName is the name that the server shows to clients and peers. Default:
	// one that the server makes up at each start.
	ServerName string

	// Logger gets what the server logs. Default slog.Default().
	Logger *slog.Logger

	// StartTimeout bounds Start and the second half of Restart, recovery of all
	// streams included. Default 30 s.
	StartTimeout time.Duration

	// Dropped, when set, is called for each DropReport, one at a time, on a
	// goroutine of its own. It may call Restart and MUST NOT call Shutdown, which
	// waits for it.
	Dropped func(DropReport)
}

// Validate reports every option that cannot work, without touching a file or
// a port.
func (o Options) Validate() error {
	var errs []error
	if o.StoreDir == "" {
		errs = append(errs, errors.New("StoreDir is empty"))
	}
	if _, _, err := splitAddress(cmp.Or(o.Listen, DefaultListen)); err != nil {
		errs = append(errs, fmt.Errorf("Listen: %w", err))
	}
	if o.HTTP != "" {
		if _, _, err := splitAddress(o.HTTP); err != nil {
			errs = append(errs, fmt.Errorf("HTTP: %w", err))
		}
	}
	if o.MaxPayload > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("MaxPayload %d is over %d", o.MaxPayload, math.MaxInt32))
	}
	for _, option := range []struct {
		name  string
		value int64
	}{
		{"MaxPayload", o.MaxPayload},
		{"SyncInterval", int64(o.SyncInterval)},
		{"MaxBufferedMsgs", int64(o.MaxBufferedMsgs)},
		{"MaxBufferedBytes", o.MaxBufferedBytes},
		{"MaxStore", o.MaxStore},
		{"MaxMemory", o.MaxMemory},
		{"StartTimeout", int64(o.StartTimeout)},
	} {
		if option.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d is negative", option.name, option.value))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return oneLine{err}
	}
	return nil
}

// ports are those that a running server has got, for its successor. 0: none yet.
type ports struct{ client, monitor int }

// serverOptions merges the options, the configuration file and the defaults into
// what the server takes. It makes a new value each time because the server
// writes to it.
func (o Options) serverOptions(pinned ports) (*server.Options, error) {
	so := &server.Options{}
	if o.ServerConfig != "" {
		var err error
		if so, err = server.ProcessConfigFile(o.ServerConfig); err != nil {
			return nil, fmt.Errorf("nats-server configuration: %w", oneLine{err})
		}
		if so.StoreDir != "" && !samePath(so.StoreDir, o.StoreDir) {
			return nil, fmt.Errorf("nats-server configuration %s: store_dir %q differs from the store directory %q: remove it",
				o.ServerConfig, so.StoreDir, o.StoreDir)
		}
	}
	if err := o.setAddresses(so, pinned); err != nil {
		return nil, err
	}

	// The process is the caller's: its signals, its log, its pid file.
	so.NoSigs, so.NoLog, so.DontListen = true, true, false
	so.LogFile, so.Syslog, so.RemoteSyslog, so.PidFile = "", false, "", ""

	so.JetStream, so.StoreDir, so.DisableJetStreamBanner = true, o.StoreDir, true
	so.JetStreamMaxStore = cmp.Or(o.MaxStore, so.JetStreamMaxStore, DefaultMaxStore)
	so.JetStreamMaxMemory = cmp.Or(o.MaxMemory, so.JetStreamMaxMemory, DefaultMaxMemory)
	so.StreamMaxBufferedMsgs = cmp.Or(o.MaxBufferedMsgs, so.StreamMaxBufferedMsgs, DefaultMaxBufferedMsgs)
	so.StreamMaxBufferedSize = cmp.Or(o.MaxBufferedBytes, so.StreamMaxBufferedSize, DefaultMaxBufferedBytes)
	so.SyncInterval = cmp.Or(o.SyncInterval, so.SyncInterval, DefaultSyncInterval)
	so.SyncAlways = so.SyncAlways || o.SyncAlways
	so.MaxPayload = cmp.Or(int32(o.MaxPayload), so.MaxPayload, DefaultMaxPayload)
	so.ServerName = cmp.Or(o.ServerName, so.ServerName)
	return so, nil
}

func (o Options) setAddresses(so *server.Options, pinned ports) error {
	if o.Listen != "" {
		host, port, err := splitAddress(o.Listen)
		if err != nil {
			return err
		}
		so.Host, so.Port = host, port
	}
	host, port, err := splitAddress(DefaultListen)
	if err != nil {
		return err
	}
	so.Host, so.Port = cmp.Or(so.Host, host), cmp.Or(so.Port, port)
	if o.HTTP != "" {
		if so.HTTPHost, so.HTTPPort, err = splitAddress(o.HTTP); err != nil {
			return err
		}
	}

	so.Port = cmp.Or(pinned.client, so.Port)
	if pinned.monitor != 0 && so.HTTPPort != 0 {
		so.HTTPPort = pinned.monitor
	}
	if pinned.monitor != 0 && so.HTTPSPort != 0 {
		so.HTTPSPort = pinned.monitor
	}
	return nil
}

// splitAddress splits "host:port" and gives port 0 as the server wants it: to
// nats-server 0 means "not set" and server.RANDOM_PORT means "any".
func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("address %s: port %q is not a number from 0 to 65535", address, text)
	}
	if host == "" {
		// An empty host is every interface in Go and "not set" in nats-server.
		return "", 0, fmt.Errorf("address %s: host is missing (0.0.0.0 for every interface)", address)
	}
	if number == 0 {
		return host, server.RANDOM_PORT, nil
	}
	return host, int(number), nil
}

func samePath(a, b string) bool {
	absA, errA := filepath.Abs(a)
	absB, errB := filepath.Abs(b)
	return errA == nil && errB == nil && absA == absB
}

// oneLine shows an error that the server writes over several lines as one.
type oneLine struct{ error }

func (e oneLine) Unwrap() error { return e.error }

func (e oneLine) Error() string {
	return strings.ReplaceAll(strings.TrimSpace(e.error.Error()), "\n", "; ")
}
