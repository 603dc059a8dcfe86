package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Validate reports everything that is wrong with c, joined; each is an *Error
// with a key and no place. Load has called it already.
func (c Config) Validate() error { return join(c.problems()) }

// check gathers what is wrong with a configuration whose values could be read.
type check struct {
	config Config
	found  []*Error
}

func (c Config) problems() []*Error {
	k := &check{config: c}
	k.limits()
	k.names()
	k.connection()
	k.embedded()
	k.addresses()
	k.streams()
	k.taps()
	k.timing()
	k.kinds()
	slices.SortStableFunc(k.found, func(a, b *Error) int { return strings.Compare(a.Key, b.Key) })
	return k.found
}

// fail notes a problem of key; related are the other keys that have a part in
// it. A key that is wrong by itself is not compared with others as well.
func (k *check) fail(key, problem, hint string, related ...string) {
	if len(related) > 0 && slices.ContainsFunc(k.found, func(e *Error) bool {
		return e.Key == key || slices.Contains(related, e.Key)
	}) {
		return
	}
	k.found = append(k.found, &Error{Key: key, Problem: problem, Hint: hint, related: related})
}

// limits checks the range and oneof tags.
func (k *check) limits() {
	for _, l := range leaves() {
		v := reflect.ValueOf(k.config).FieldByIndex(l.index)
		if words := l.tag.Get("oneof"); words != "" {
			k.word(l.key, v.String(), strings.Split(words, "|"))
		}
		low, high, ok := strings.Cut(l.tag.Get("range"), "..")
		if s, isSync := v.Interface().(SyncInterval); !ok || isSync && s.Always() {
			continue
		}
		hint := "use " + low + " to " + high
		switch {
		case less(v, bound(l.typ, low)):
			k.fail(l.key, show(v)+" is less than "+low, hint)
		case less(bound(l.typ, high), v):
			k.fail(l.key, show(v)+" is more than "+high, hint)
		case v.Kind() == reflect.Float64 && v.Float() != v.Float(): // NaN, which only a program can set
			k.fail(l.key, "is not a number", hint)
		}
	}
}

func (k *check) word(key, value string, words []string) {
	for _, w := range words {
		if value == w {
			return
		}
	}
	hint := "use one of " + strings.Join(words, ", ")
	k.fail(key, quote(value)+" is not one of its words", hint)
}

func bound(t reflect.Type, text string) reflect.Value {
	v := reflect.New(t).Elem()
	if err := parseText(v, "", text); err != nil {
		panic("config: range tag: " + err.Error())
	}
	return v
}

func less(a, b reflect.Value) bool {
	if a.Kind() == reflect.Float64 {
		return a.Float() < b.Float()
	}
	return a.Int() < b.Int()
}

var (
	rootName     = regexp.MustCompile(`^[A-Za-z0-9-][A-Za-z0-9_-]{0,63}$`)
	streamName   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
	instanceName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	kindName     = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	contextName  = regexp.MustCompile(`^[^/\\\x00-\x1f]{0,255}$`)
)

func (k *check) names() {
	c := k.config
	if c.DataDir == "" {
		k.fail("data_dir", "is empty", "name a directory such as ./data")
	}
	if !instanceName.MatchString(c.Instance) {
		k.fail("instance", quote(c.Instance)+" is not a valid name", "use 1 to 64 characters of A-Z a-z 0-9 . _ -")
	}
	if !rootName.MatchString(c.Bus.Root) {
		k.fail("bus.root", quote(c.Bus.Root)+" is not a single subject token of ours",
			"use 1 to 64 characters of A-Z a-z 0-9 _ -, not beginning with _")
	}
	if !streamName.MatchString(c.Bus.Stream) {
		k.fail("bus.stream", quote(c.Bus.Stream)+" is not a valid stream name", "use 1 to 128 characters of A-Z a-z 0-9 _ -")
	}
	if !contextName.MatchString(c.NATS.Context) || c.NATS.Context == ".." || c.NATS.Context == "." {
		k.fail("nats.context", quote(c.NATS.Context)+" is not the name of a context", "use a name that nats context ls shows")
	}
	for key, path := range map[string]string{
		"data_dir": c.DataDir, "nats.creds": c.NATS.Creds, "nats.nkey": c.NATS.NKey,
		"nats.tls.ca": c.NATS.TLS.CA, "nats.tls.cert": c.NATS.TLS.Cert, "nats.tls.key": c.NATS.TLS.Key,
		"nats.embedded.server_config": c.NATS.Embedded.ServerConfig, "audit.path": c.Audit.Path,
	} {
		if strings.ContainsRune(path, 0) {
			k.fail(key, "holds a NUL character", "no path can")
		}
	}
}

func (k *check) streams() {
	b := k.config.Bus
	if b.Duplicates > b.MaxAge {
		k.fail("bus.duplicates", fmt.Sprintf("bus.duplicates (%s) is longer than bus.max_age (%s)", b.Duplicates, b.MaxAge),
			"JetStream cannot remember an id for longer than its message", "bus.max_age")
	}
	n := k.config.NATS
	if n.External() {
		return
	}
	if b.Replicas > 1 && n.Embedded.ServerConfig == "" {
		k.fail("bus.replicas", fmt.Sprintf("bus.replicas is %d, but the embedded server is a single one", b.Replicas),
			"use 1, or set nats.url to a cluster", "nats.url", "nats.embedded.server_config")
	}
	payload := n.Embedded.MaxPayload
	for key, size := range map[string]Size{
		"bus.max_bytes": b.MaxBytes, "bus.tap_max_bytes": b.TapMaxBytes,
		"nats.embedded.max_buffered_bytes": n.Embedded.MaxBufferedBytes,
	} {
		if size <= payload {
			k.fail(key, fmt.Sprintf("%s (%s) does not hold one message of nats.embedded.max_payload (%s)", key, size, payload),
				"raise the one or lower the other", "nats.embedded.max_payload")
		}
	}
}

func (k *check) timing() {
	a, r := k.config.Agents, k.config.Roles
	// Compared by division: three times a roll-up may not fit.
	if a.HeartbeatTTL/3 < a.Rollup {
		k.fail("agents.heartbeat_ttl",
			fmt.Sprintf("agents.heartbeat_ttl (%s) is less than three times agents.rollup (%s)", a.HeartbeatTTL, a.Rollup),
			"a lease must outlive two lost heartbeats; raise the one or lower the other", "agents.rollup")
	}
	if r.ProbeTimeout >= r.AckTimeout {
		k.fail("roles.probe_timeout",
			fmt.Sprintf("roles.probe_timeout (%s) is not less than roles.ack_timeout (%s)", r.ProbeTimeout, r.AckTimeout),
			"the probe comes first and counts towards the acknowledgement; raise the one or lower the other", "roles.ack_timeout")
	}
	for section, b := range map[string]Backoff{"assign.backoff": k.config.Assign.Backoff, "roles.backoff": r.Backoff} {
		if b.Max < b.Base {
			k.fail(section+".max", fmt.Sprintf("%s.max (%s) is less than %s.base (%s)", section, b.Max, section, b.Base),
				"raise the one or lower the other", section+".base")
		}
	}
}

func (k *check) kinds() {
	const most = 64
	kinds := k.config.Roles.Kinds
	if len(kinds) > most {
		k.fail("roles.kinds", fmt.Sprintf("has %d entries", len(kinds)), fmt.Sprintf("use at most %d", most))
	}
	first := map[string]int{}
	for i, kind := range kinds {
		key := fmt.Sprintf("roles.kinds[%d].name", i)
		switch before, repeated := first[kind.Name]; {
		case kind.Name == "":
			k.fail(key, "a kind has no name", "write name: and 1 to 64 characters of A-Z a-z 0-9 _ -")
		case !kindName.MatchString(kind.Name):
			k.fail(key, quote(kind.Name)+" is not a valid name", "use 1 to 64 characters of A-Z a-z 0-9 _ -")
		case repeated:
			k.fail(key, fmt.Sprintf("%s is the name of roles.kinds[%d] already", quote(kind.Name), before), "keep one of them")
		default:
			first[kind.Name] = i
		}
		if len([]rune(kind.CharterVersion)) > 128 {
			k.fail(fmt.Sprintf("roles.kinds[%d].charter_version", i), "is longer than 128 characters", "shorten it")
		}
	}
}
