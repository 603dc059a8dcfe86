package agents

import (
	"encoding/json"
)

// Status says whether an agent is there; the package's diagram says how each
// is entered and left.
type Status string

// The states of an agent.
const (
	Online  Status = "online"
	Stale   Status = "stale"
	Offline Status = "offline"
)

// Delivery says how messages reach an agent.
type Delivery string

// The ways of delivery. An agent with Live only subscribes to subjects and is
// owed nothing.
const (
	Inbox Delivery = "inbox"
	Live  Delivery = "live"
)

// The reasons of transitions.
const (
	reasonRegistered   = "registered"
	reasonRenewed      = "renewed"
	reasonHeartbeat    = "heartbeat"
	reasonMessage      = "message"
	reasonLeaseExpired = "lease_expired"
	reasonOfflineAfter = "offline_after"
	reasonDeregistered = "deregistered"
)

// Profile is what an agent says of itself when it registers. Slices in it are
// shared and never changed in place.
type Profile struct {
	CLI               string          `json:"cli"` // codex, gemini, claude, other
	PID               int64           `json:"pid,omitempty"`
	Capabilities      []string        `json:"capabilities"` // sorted
	Topics            []string        `json:"topics"`       // sorted
	ProjectID         string          `json:"project_id"`
	SessionID         string          `json:"session_id"`
	HostID            string          `json:"host_id"`
	TransportLocators []string        `json:"transport_locators"` // as given, the best first
	Metadata          json.RawMessage `json:"metadata"`           // a JSON object
	Delivery          Delivery        `json:"delivery"`
	HeartbeatTTLMS    int64           `json:"heartbeat_ttl_ms"`
}

// Life is what signs of life and deadlines change. Instants are milliseconds of
// bus time.
type Life struct {
	Status           Status `json:"status"`
	Deregistered     bool   `json:"deregistered"` // only a registration brings it back
	LastSeenAtMS     int64  `json:"last_seen_at_ms"`
	LeaseExpiresAtMS int64  `json:"lease_expires_at_ms"`
	StatusSinceMS    int64  `json:"status_since_ms"`

	// DeadlineAtMS is when the state ends by itself: the end of the lease when
	// online, of the time to be offline when stale; 0 when offline.
	DeadlineAtMS int64 `json:"-"`
}

// Agent is one row: an agent, whatever has become of it. As JSON it is what get
// shows and events carry.
type Agent struct {
	AgentID string `json:"agent_id"`
	Profile
	Generation     int64  `json:"generation"`
	LeaseID        string `json:"lease_id"`      // one a generation
	RegisteredID   int64  `json:"registered_id"` // register row of the generation's registration
	RegisteredAtMS int64  `json:"registered_at_ms"`
	Life

	// Registration is the digest of the registration that began the generation;
	// topics subscribed since do not change it.
	Registration string `json:"-"`
}

// lapsed reports whether the lease is over and nobody has said so yet.
func (a *Agent) lapsed(nowMS int64) bool { return a.Status == Online && nowMS >= a.LeaseExpiresAtMS }

// audible reports whether messages to its topics are for the agent.
func (a *Agent) audible() bool { return a.Status != Offline }

// Move is a change of an agent's state, or a new generation: what becomes a
// transition. The zero Move is none.
type Move struct {
	From          Status // "" when it is new
	Reason        string
	NewGeneration bool
}

// Change is the Data of the notices online, subscribed, stale and offline.
type Change struct {
	ID            string
	Generation    int64
	NewGeneration bool // online by a registration that is no renewal
	Topics        []string
	Added         []string // online: all topics; subscribed: those that are new
	Live          bool     // delivery is live
	ProjectID     string
	Capabilities  []string
}

// SubscribedTopics are the topics whose waiting messages are the agent's now.
func (c Change) SubscribedTopics() []string { return c.Added }

// LiveOnly reports whether the agent is owed no delivery.
func (c Change) LiveOnly() bool { return c.Live }

// NewlyRegistered reports whether a new generation has begun.
func (c Change) NewlyRegistered() bool { return c.NewGeneration }

func (a *Agent) change() Change {
	return Change{ID: a.AgentID, Generation: a.Generation, Topics: a.Topics, Live: a.Delivery == Live,
		ProjectID: a.ProjectID, Capabilities: a.Capabilities}
}
