package agents

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"signalbox/wire"
)

// Limits of a registration.
const (
	MaxTopics       = 64
	MaxCapabilities = 64
	MaxLocators     = 16
	MaxLocator      = 256      // bytes of one
	MaxMetadata     = 16 << 10 // bytes of JSON without white space
)

// defaultLocator is how an agent is reached that names no other way.
const defaultLocator = "nats"

var clis = []string{"codex", "gemini", "claude", "other"}

// Registration is the body of the command register.
type Registration struct {
	AgentID string `json:"agent_id"` // checked against the sender
	Profile
}

// Normalize checks a registration of the sender and gives it the form in which
// it is kept and compared: lists sorted and without repetition, defaults in
// place. A refusal is IDENTITY_MISMATCH, RESERVED_ID, TTL_INVALID, or
// BODY_INVALID with the name of the field.
func (r Registration) Normalize(sender string, s Settings) (Profile, *wire.Error) {
	p := r.Profile
	switch {
	case r.AgentID != "" && r.AgentID != sender:
		return p, wire.Errorf(wire.IdentityMismatch, "agent_id is %.200q, but the subject says %q", r.AgentID, sender).
			WithHint("an agent registers itself: leave agent_id out, or publish under that id")
	case sender == wire.Bridge, sender == wire.NoScope:
		return p, wire.Errorf(wire.ReservedID, "nobody may register as %q", sender).WithHint("choose another agent id")
	}
	if p.CLI == "" {
		p.CLI = "other"
	}
	if p.Delivery == "" {
		p.Delivery = Inbox
	}
	switch {
	case !slices.Contains(clis, p.CLI):
		return p, invalid("cli", "one of "+strings.Join(clis, ", "), p.CLI)
	case p.Delivery != Inbox && p.Delivery != Live:
		return p, invalid("delivery", "inbox or live", string(p.Delivery))
	case p.PID < 0:
		return p, invalid("pid", "0 or more", fmt.Sprint(p.PID))
	}
	for _, id := range []struct{ field, value string }{
		{"project_id", p.ProjectID}, {"session_id", p.SessionID}, {"host_id", p.HostID},
	} {
		if id.value != "" && !wire.Visible(id.value) {
			return p, invalid(id.field, "at most 128 visible characters", id.value)
		}
	}
	return p.normalizeLists(s)
}

func (p Profile) normalizeLists(s Settings) (Profile, *wire.Error) {
	var refusal *wire.Error
	if p.Capabilities, refusal = normalizeCapabilities(p.Capabilities); refusal != nil {
		return p, refusal
	}
	if p.Topics, refusal = normalizeTopics(p.Topics); refusal != nil {
		return p, refusal
	}
	if p.TransportLocators, refusal = normalizeLocators(p.TransportLocators); refusal != nil {
		return p, refusal
	}
	if p.Metadata, refusal = normalizeMetadata(p.Metadata); refusal != nil {
		return p, refusal
	}
	if p.HeartbeatTTLMS == 0 {
		p.HeartbeatTTLMS = s.defaultTTL()
		return p, nil
	}
	if least, most := s.ttlBounds(); p.HeartbeatTTLMS < least || p.HeartbeatTTLMS > most {
		return p, wire.Errorf(wire.TTLInvalid, "heartbeat_ttl_ms is %d, and must be %d to %d", p.HeartbeatTTLMS, least, most).
			WithHint(fmt.Sprintf("heartbeats are rolled up every %d ms; a lease lasts at least %d roll-ups and %d ms, at most %d ms; left out it is %d ms",
				s.RollupMS, rollups, minTTL.Milliseconds(), most, s.defaultTTL()))
	}
	return p, nil
}

func normalizeCapabilities(list []string) ([]string, *wire.Error) {
	for i, c := range list {
		if !wire.Visible(c) {
			return nil, invalid(fmt.Sprintf("capabilities[%d]", i), "1 to 128 visible characters", c)
		}
	}
	return sortedSet("capabilities", list, MaxCapabilities)
}

func normalizeTopics(list []string) ([]string, *wire.Error) {
	for i, t := range list {
		if !wire.ValidTopic(t) {
			return nil, invalid(fmt.Sprintf("topics[%d]", i), "a topic: 1 to 8 ids joined by dots", t)
		}
	}
	return sortedSet("topics", list, MaxTopics)
}

// sortedSet is a copy of the list, sorted, each value once; never nil.
func sortedSet(field string, list []string, most int) ([]string, *wire.Error) {
	set := append(make([]string, 0, len(list)), list...)
	slices.Sort(set)
	if set = slices.Compact(set); len(set) > most {
		return nil, wire.Errorf(wire.BodyInvalid, "%s would be %d, and may be %d at most", field, len(set), most)
	}
	return set, nil
}

func normalizeLocators(list []string) ([]string, *wire.Error) {
	if len(list) == 0 {
		return []string{defaultLocator}, nil
	}
	if len(list) > MaxLocators {
		return nil, wire.Errorf(wire.BodyInvalid, "transport_locators are %d, and may be %d at most", len(list), MaxLocators)
	}
	for i, l := range list {
		if l == "" || len(l) > MaxLocator || strings.ContainsFunc(l, unicode.IsControl) {
			return nil, invalid(fmt.Sprintf("transport_locators[%d]", i), "1 to 256 bytes without control characters", l)
		}
	}
	return list, nil
}

// normalizeMetadata takes the white space out of a JSON object; none is an
// empty one.
func normalizeMetadata(raw json.RawMessage) (json.RawMessage, *wire.Error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage("{}"), nil
	}
	if raw[0] != '{' || !utf8.Valid(raw) {
		return nil, invalid("metadata", "a JSON object in UTF-8", string(raw))
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, invalid("metadata", "a JSON object in UTF-8", string(raw))
	}
	if compact.Len() > MaxMetadata {
		return nil, wire.Errorf(wire.BodyInvalid, "metadata takes %d bytes, and may take %d at most", compact.Len(), MaxMetadata)
	}
	return compact.Bytes(), nil
}

func invalid(field, want, got string) *wire.Error {
	return wire.Errorf(wire.BodyInvalid, "%s must be %s, not %.60q", field, want, got)
}

// digest is what a normalized registration is compared by, hex of SHA-256. The
// order of fields in metadata does not count.
func (p Profile) digest() (string, error) {
	dec := json.NewDecoder(bytes.NewReader(p.Metadata))
	dec.UseNumber() // numbers as they are written, since no float holds them all
	var metadata map[string]any
	if err := dec.Decode(&metadata); err != nil {
		return "", fmt.Errorf("the digest of a registration: %w", err)
	}
	sorted, err := json.Marshal(metadata)
	if err != nil {
		return "", fmt.Errorf("the digest of a registration: %w", err)
	}
	p.Metadata = sorted
	raw, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("the digest of a registration: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}
