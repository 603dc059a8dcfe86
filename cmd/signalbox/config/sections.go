package config

import "log/slog"

// Agents rules when an agent counts as present.
type Agents struct {
	// HeartbeatTTL is how long an agent that says nothing stays online, where its
	// registration names no TTL of its own. At least three times agents.rollup.
	HeartbeatTTL Duration `yaml:"heartbeat_ttl" range:"1s..1h"`
	// Rollup is how often heartbeats are gathered into one command of the log.
	Rollup Duration `yaml:"rollup" range:"100ms..20m"`
	// OfflineAfter is how long an agent stays stale before it is offline.
	OfflineAfter Duration `yaml:"offline_after" range:"1s..720h"`
}

// Assign holds the defaults of jobs; a job may say otherwise.
type Assign struct {
	// Timeout is how long one attempt of a job may run.
	Timeout Duration `yaml:"timeout" range:"1s..720h"`
	// MaxRetries is how often a failed job is tried again.
	MaxRetries int `yaml:"max_retries" range:"0..20"`
	// Backoff spaces the attempts of a job.
	Backoff Backoff `yaml:"backoff"`
}

// Backoff spaces repeated attempts: the nth wait is base × factor^(n-1), cut to
// max, then moved by up to ± jitter of itself.
type Backoff struct {
	// Base is the wait after the first failure.
	Base Duration `yaml:"base" range:"1ms..24h"`
	// Factor multiplies the wait after each further failure.
	Factor float64 `yaml:"factor" range:"1..100"`
	// Max is the longest wait, before jitter. At least base.
	Max Duration `yaml:"max" range:"1ms..720h"`
	// Jitter is the part of the wait by which it may be longer or shorter, so
	// that many do not try again at the same instant.
	Jitter float64 `yaml:"jitter" range:"0..1"`
}

// Roles lists the role kinds and rules their elections.
type Roles struct {
	// Kinds lists the kinds of role that can be held: {name, scoped,
	// charter_version, probe}. Names are unique. At most 64.
	Kinds []RoleKind `yaml:"kinds"`
	// ProbeTimeout is how long a candidate has to answer a probe. Less than
	// roles.ack_timeout.
	ProbeTimeout Duration `yaml:"probe_timeout" range:"100ms..1h"`
	// AckTimeout is how long a candidate has, from its reservation, to accept the
	// role.
	AckTimeout Duration `yaml:"ack_timeout" range:"1s..24h"`
	// MaxProbeFailures is how many failures in a row put a candidate into
	// quarantine.
	MaxProbeFailures int `yaml:"max_probe_failures" range:"1..100"`
	// Backoff spaces the attempts to elect a candidate that failed.
	Backoff Backoff `yaml:"backoff"`
	// Quarantine is how long a candidate with too many failures is left out.
	Quarantine Duration `yaml:"quarantine" range:"1s..720h"`
}

// RoleKind is one entry of roles.kinds.
type RoleKind struct {
	// Name is the role_kind of keys and subjects. Required; 1 to 64 characters of
	// A-Z a-z 0-9 _ -.
	Name string `yaml:"name"`
	// Scoped says whether a role of this kind belongs to a scope of a project;
	// otherwise there is one a project. Default false.
	Scoped bool `yaml:"scoped"`
	// CharterVersion is the version of the charter that a holder must acknowledge;
	// empty means there is none. At most 128 characters. Default empty.
	CharterVersion string `yaml:"charter_version"`
	// Probe says whether a candidate with the capability probe is asked before it
	// is chosen; otherwise its live lease is the answer. Default true.
	Probe bool `yaml:"probe"`
}

// HTTP is the server of /metrics and /healthz.
type HTTP struct {
	// Listen is the address of /metrics and /healthz, as host:port; port 0 picks
	// a free one, empty means off. There is no login: keep it on loopback or
	// behind something that has one.
	Listen string `yaml:"listen"`
}

// Log is the bridge's own log on stderr.
type Log struct {
	// Level is the least severe kind of line that is written.
	Level string `yaml:"level" oneof:"debug|info|warn|error"`
	// Format is how a line is written; auto means text on a terminal and json
	// otherwise.
	Format string `yaml:"format" oneof:"auto|text|json"`
}

// Slog is the level as log/slog names it.
func (l Log) Slog() slog.Level {
	switch l.Level {
	case "debug":
		return slog.LevelDebug
	case "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// Default is the configuration of a bridge that is told nothing. config.yaml at
// the root of the project is the same with the reason for each value.
func Default() Config {
	return Config{
		DataDir:  "./data",
		Instance: "signalbox",
		NATS: NATS{
			Embedded: Embedded{
				Listen:           "127.0.0.1:4222",
				MaxPayload:       1 * MiB,
				SyncInterval:     SyncInterval(Second),
				MaxBufferedMsgs:  2_000_000,
				MaxBufferedBytes: 1 * GiB,
			},
		},
		Bus: Bus{
			Root:        "bus",
			Stream:      "BUS",
			MaxAge:      72 * Hour,
			MaxBytes:    8 * GiB,
			Replicas:    1,
			Duplicates:  30 * Second,
			TapMaxAge:   24 * Hour,
			TapMaxBytes: 2 * GiB,
		},
		Audit: Audit{
			Cache:    32 * MiB,
			BatchMax: 1000,
			Search:   true,
		},
		Agents: Agents{
			HeartbeatTTL: 30 * Second,
			Rollup:       5 * Second,
			OfflineAfter: 5 * Minute,
		},
		Assign: Assign{
			Timeout: 10 * Minute,
			Backoff: Backoff{Base: 1 * Second, Factor: 2, Max: 5 * Minute, Jitter: 0.2},
		},
		Roles: Roles{
			Kinds: []RoleKind{
				{Name: "cto", Probe: true},
				{Name: "lead", Scoped: true, Probe: true},
			},
			ProbeTimeout:     10 * Second,
			AckTimeout:       45 * Second,
			MaxProbeFailures: 3,
			Backoff:          Backoff{Base: 1 * Second, Factor: 2, Max: 30 * Second, Jitter: 0.2},
			Quarantine:       2 * Minute,
		},
		HTTP: HTTP{Listen: "127.0.0.1:8223"},
		Log:  Log{Level: "info", Format: "auto"},
	}
}
