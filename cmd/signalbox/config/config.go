package config

import (
	"path/filepath"
	"strings"
)

// Config is everything an operator can decide. The zero Config is not usable:
// start from Default. The yaml tag is the key, the range tag the inclusive
// limits in the key's own unit, the oneof tag the allowed words, the flag tag
// the command-line flag that sets the same thing. The first sentence of each
// field's docstring is what Keys, and so the documentation and the shell
// completion, say of it.
type Config struct {
	// DataDir is the directory that holds the register, its index, JetStream's
	// files, the lock and the file nats.url. It is created when missing; a
	// relative path is relative to the working directory.
	DataDir string `yaml:"data_dir" flag:"data"`
	// Instance names this bridge in the source of its events
	// (ce-source: /signalbox/<instance>) and in bridge.started. 1 to 64
	// characters of A-Z a-z 0-9 . _ -. It is not taken from the host, so that
	// moving the data directory to another machine changes nothing.
	Instance string `yaml:"instance"`
	// NATS says which NATS server the bus lives on.
	NATS NATS `yaml:"nats"`
	// Bus describes the subjects and streams that are captured.
	Bus Bus `yaml:"bus"`
	// Audit describes the register, the SQLite database of every message.
	Audit Audit `yaml:"audit"`
	// Agents rules when an agent counts as present.
	Agents Agents `yaml:"agents"`
	// Assign holds the defaults of jobs.
	Assign Assign `yaml:"assign"`
	// Roles lists the role kinds and rules their elections.
	Roles Roles `yaml:"roles"`
	// HTTP is the server of /metrics and /healthz.
	HTTP HTTP `yaml:"http"`
	// Log is the bridge's own log on stderr.
	Log Log `yaml:"log"`
}

// RegisterPath is where the register lives: audit.path, or signalbox.db in the
// data directory when that is empty.
func (c Config) RegisterPath() string {
	if c.Audit.Path != "" {
		return c.Audit.Path
	}
	return filepath.Join(c.DataDir, "signalbox.db")
}

// NATS selects the server: the embedded one unless URL or Context is set.
type NATS struct {
	// URL is the NATS server to use instead of the embedded one; empty means
	// embedded. Several servers of one cluster are separated by commas. Schemes
	// nats, tls, ws and wss; a missing scheme means nats.
	URL string `yaml:"url"`
	// Creds is the path of a .creds file (JWT and seed) to log in with. Not
	// together with nats.nkey or nats.context.
	Creds string `yaml:"creds"`
	// NKey is the path of a file with an NKey seed to log in with. Not together
	// with nats.creds or nats.context.
	NKey string `yaml:"nkey"`
	// TLS is the client side of an encrypted connection.
	TLS TLS `yaml:"tls"`
	// Context is the name of a context of the nats CLI that says URL, login and
	// TLS; empty means none. Not together with the other ways to say them.
	Context string `yaml:"context"`
	// Embedded configures the NATS server inside this process. None of its keys
	// may be changed when another server is used.
	Embedded Embedded `yaml:"embedded"`
}

// External reports whether the bus lives on a NATS server outside this process.
func (n NATS) External() bool { return n.URL != "" || n.Context != "" }

// TLS names the files of an encrypted connection to a NATS server. All empty
// means the system's certificate authorities and no client certificate.
type TLS struct {
	// CA is the path of a PEM file with the certificate authorities to trust
	// instead of the system's.
	CA string `yaml:"ca"`
	// Cert is the path of the PEM client certificate; needs nats.tls.key.
	Cert string `yaml:"cert"`
	// Key is the path of the PEM private key of nats.tls.cert.
	Key string `yaml:"key"`
}

// Embedded configures the NATS server that runs inside this process.
type Embedded struct {
	// Listen is the address clients connect to, as host:port; port 0 picks a
	// free one. The URL that results is written to nats.url in the data
	// directory.
	Listen string `yaml:"listen" flag:"listen"`
	// ServerConfig is the path of a nats-server.conf for everything that has no
	// key here (accounts, TLS, clustering, leaf nodes); empty means none. A key
	// of this section that differs from its default wins over the file, and the
	// file over the defaults.
	ServerConfig string `yaml:"server_config"`
	// HTTP is the address of the NATS monitoring endpoints (/varz, /jsz, ...),
	// as host:port; empty means off.
	HTTP string `yaml:"http"`
	// MaxPayload is the largest message in bytes, headers included. Bodies of
	// API requests may have 64 KiB less, so it must leave room for both; 64 MiB
	// is the most a NATS server takes.
	MaxPayload Size `yaml:"max_payload" range:"128KiB..64MiB"`
	// SyncInterval is how often JetStream fsyncs its files; always means before
	// every PubAck. A power cut may take the messages of the last interval that
	// no reply has confirmed.
	SyncInterval SyncInterval `yaml:"sync_interval" range:"10ms..10m"`
	// MaxBufferedMsgs is how many plain publishes may wait in memory for the
	// stream; what comes beyond is dropped by the server and announced.
	MaxBufferedMsgs int `yaml:"max_buffered_msgs" range:"1000..100000000"`
	// MaxBufferedBytes is how many bytes of plain publishes may wait in memory
	// for the stream; what comes beyond is dropped by the server and announced.
	MaxBufferedBytes Size `yaml:"max_buffered_bytes" range:"1MiB..1TiB"`
}

// Bus describes the captured subjects and the JetStream streams behind them.
type Bus struct {
	// Root is the first token of all of Signalbox's subjects. 1 to 64 characters
	// of A-Z a-z 0-9 _ -, not beginning with _.
	Root string `yaml:"root"`
	// Stream is the JetStream stream that captures the root; taps go to the same
	// name with _TAP appended. 1 to 128 characters of A-Z a-z 0-9 _ -.
	Stream string `yaml:"stream"`
	// MaxAge is how long the stream keeps a message. The register keeps it for
	// ever; this is how long the bridge may be away without a gap.
	MaxAge Duration `yaml:"max_age" range:"1s..87600h"`
	// MaxBytes is the most the stream holds on disk; the oldest messages go
	// first.
	MaxBytes Size `yaml:"max_bytes" range:"1MiB..1024TiB"`
	// Replicas is the number of servers of a NATS cluster that hold the streams.
	// More than 1 needs a cluster.
	Replicas int `yaml:"replicas" range:"1..5"`
	// Duplicates is how long JetStream remembers a Nats-Msg-Id to drop a repeat.
	// Each remembered id costs about 200 B of the server's memory. At most
	// bus.max_age.
	Duplicates Duration `yaml:"duplicates" range:"100ms..24h"`
	// Taps lists what else is captured: subjects of other applications ("svc.>"),
	// and streams that exist already ({stream: ORDERS}). No tap may overlap the
	// root, $-subjects, _INBOX or another tap. At most 256.
	Taps []Tap `yaml:"taps"`
	// TapMaxAge is how long the stream of the taps keeps a message.
	TapMaxAge Duration `yaml:"tap_max_age" range:"1s..87600h"`
	// TapMaxBytes is the most the stream of the taps holds on disk; the oldest
	// messages go first.
	TapMaxBytes Size `yaml:"tap_max_bytes" range:"1MiB..1024TiB"`
}

// TapStream is the name of the stream that captures the tapped subjects.
func (b Bus) TapStream() string { return b.Stream + "_TAP" }

// TapSubjects are the tapped subjects, in the order of the configuration.
func (b Bus) TapSubjects() []string {
	var subjects []string
	for _, t := range b.Taps {
		if t.Subject != "" {
			subjects = append(subjects, t.Subject)
		}
	}
	return subjects
}

// TapStreams are the tapped streams, in the order of the configuration.
func (b Bus) TapStreams() []string {
	var streams []string
	for _, t := range b.Taps {
		if t.Stream != "" {
			streams = append(streams, t.Stream)
		}
	}
	return streams
}

// Tap is one entry of bus.taps. Exactly one of its fields is set.
type Tap struct {
	// Subject is a NATS subject, wildcards allowed, whose messages are captured
	// without disturbing request and reply.
	Subject string `yaml:"-"`
	// Stream is an existing JetStream stream (limits retention) that is read.
	Stream string `yaml:"stream,omitempty"`
}

// String is the tap as it stands in the configuration.
func (t Tap) String() string {
	if t.Stream != "" {
		return "{stream: " + t.Stream + "}"
	}
	return t.Subject
}

// MarshalYAML writes a subject as a string and a stream as {stream: name}.
func (t Tap) MarshalYAML() (any, error) {
	if t.Stream != "" {
		return map[string]string{"stream": t.Stream}, nil
	}
	return t.Subject, nil
}

// Audit describes the register.
type Audit struct {
	// Path is the SQLite file of the register; empty means signalbox.db in the
	// data directory.
	Path string `yaml:"path"`
	// Cache is the page cache of the register's writer, in memory.
	Cache Size `yaml:"cache" range:"1MiB..64GiB"`
	// BatchMax is the most messages of one transaction. A batch is what arrived
	// during the previous commit; nothing waits to fill it.
	BatchMax int `yaml:"batch_max" range:"1..1000"`
	// Search switches the full-text index of bodies on or off. It lives in
	// index.db and can be rebuilt at any time.
	Search Switch `yaml:"search"`
	// MinFree is the free disk space below which requests are refused and health
	// is red; empty or 0 means the larger of 1 GiB and 5 % of the file system.
	MinFree Size `yaml:"min_free" range:"0B..1024TiB" empty:"0B"`
}

// FreeFloor is audit.min_free for a file system of the given size in bytes: the
// configured value, or else the larger of 1 GiB and 5 %.
func (a Audit) FreeFloor(total int64) int64 {
	if a.MinFree > 0 {
		return int64(a.MinFree)
	}
	return max(int64(GiB), total/20)
}

// redactURL hides the logins in a list of server URLs, for messages. A password
// may hold a comma, so everything up to the last @ goes.
func redactURL(s string) string {
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s
	}
	return "***" + s[at:]
}
