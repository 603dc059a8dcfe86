package agents

import (
	"signalbox/step"
	"signalbox/wire"
)

// MaxSeen is how many agents one roll-up may list.
const MaxSeen = 1000

// find is the agent, nil if nobody has registered under the id; a damaged one
// is an error.
func (d *directory) find(id string) (*entry, error) {
	e := d.byID[id]
	if e != nil && e.damaged != nil {
		return nil, e.damaged
	}
	return e, nil
}

// admit finds the sender where what names the generation, 0 for none, may
// count for it.
func (d *directory) admit(sender string, generation int64) (*entry, error) {
	e, err := d.find(sender)
	switch {
	case err != nil:
		return nil, err
	case e == nil:
		return nil, notFound(sender)
	}
	if refusal := Admissible(&e.agent, generation); refusal != nil {
		return nil, refusal
	}
	return e, nil
}

// Registered is the reply to register.
type Registered struct {
	AgentID          string `json:"agent_id"`
	LeaseID          string `json:"lease_id"`
	Generation       int64  `json:"generation"`
	LeaseExpiresAtMS int64  `json:"lease_expires_at_ms"`
	HeartbeatTTLMS   int64  `json:"heartbeat_ttl_ms"` // in effect
	ServerTimeMS     int64  `json:"server_time_ms"`   // bus time
	Status           Status `json:"status"`
	Renewed          bool   `json:"renewed,omitempty"` // the generation goes on
}

func register(dir *directory, in step.Input, body []byte) (step.Effects, error) {
	var r Registration
	if err := step.Decode(body, &r); err != nil {
		return step.Effects{}, err
	}
	s, err := readSettings(in.Settings)
	if err != nil {
		return step.Effects{}, err
	}
	profile, refusal := r.Normalize(in.From, s)
	if refusal != nil {
		return step.Effects{}, refusal
	}
	digest, err := profile.digest()
	if err != nil {
		return step.Effects{}, err
	}
	e := dir.byID[in.From]
	var old *Agent
	if e != nil {
		copied := e.agent
		if old = &copied; e.damaged != nil {
			old.Registration = "" // what cannot be read is replaced, not renewed
		}
	}
	a, move := Register(old, profile, digest, Origin{AgentID: in.From, RowID: in.ID, LeaseID: in.DeriveID("lease")}, in.NowMS)
	var effects step.Effects
	if move == (Move{}) {
		dir.beat(e, a.Life)
	} else {
		effects = dir.move(e, a, move)
	}
	effects.Reply = Registered{AgentID: a.AgentID, LeaseID: a.LeaseID, Generation: a.Generation, LeaseExpiresAtMS: a.LeaseExpiresAtMS,
		HeartbeatTTLMS: a.HeartbeatTTLMS, ServerTimeMS: in.NowMS, Status: a.Status, Renewed: !move.NewGeneration}
	return effects, nil
}

// Beaten is the reply to heartbeat.
type Beaten struct {
	AgentID          string `json:"agent_id"`
	Generation       int64  `json:"generation"`
	LeaseExpiresAtMS int64  `json:"lease_expires_at_ms"`
	ServerTimeMS     int64  `json:"server_time_ms"` // bus time
	Status           Status `json:"status"`
}

func heartbeat(dir *directory, in step.Input, body []byte) (step.Effects, error) {
	var c struct {
		Generation int64 `json:"generation"` // 0: any
	}
	if err := step.Decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	e, err := dir.admit(in.From, c.Generation)
	if err != nil {
		return step.Effects{}, err
	}
	next, move := Beat(&e.agent, in.NowMS, reasonHeartbeat)
	effects := dir.live(e, next, move)
	effects.Reply = Beaten{AgentID: in.From, Generation: e.agent.Generation, LeaseExpiresAtMS: next.LeaseExpiresAtMS,
		ServerTimeMS: in.NowMS, Status: next.Status}
	return effects, nil
}

// Subscribed is the reply to subscribe: all topics that the agent has now.
type Subscribed struct {
	AgentID    string   `json:"agent_id"`
	Topics     []string `json:"topics"`
	Idempotent bool     `json:"idempotent,omitempty"`
}

func subscribe(dir *directory, in step.Input, body []byte) (step.Effects, error) {
	var c struct {
		Topics  []string `json:"topics"`
		Replace bool     `json:"replace"`
	}
	if err := step.Decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	if c.Topics == nil {
		return step.Effects{}, wire.Errorf(wire.BodyInvalid, "topics is missing").
			WithHint(`say which, as in {"topics":["build"]}; with "replace":true and an empty list the agent hears none`)
	}
	e, err := dir.admit(in.From, 0)
	if err != nil {
		return step.Effects{}, err
	}
	topics, added, refusal := Subscribe(&e.agent, c.Topics, c.Replace)
	if refusal != nil {
		return step.Effects{}, refusal
	}
	if len(added) == 0 && len(topics) == len(e.agent.Topics) {
		return step.Effects{Reply: Subscribed{AgentID: in.From, Topics: topics, Idempotent: true}}, nil
	}
	a := e.agent
	a.Topics = topics
	dir.change(e, a)
	change := a.change()
	change.Added = added
	return step.Effects{
		Reply:   Subscribed{AgentID: in.From, Topics: topics},
		Notices: []step.Notice{{What: noticeSubscribed, Key: in.From, Data: change}},
	}, nil
}

// Deregistered is the reply to deregister.
type Deregistered struct {
	AgentID    string `json:"agent_id"`
	Generation int64  `json:"generation"`
	Status     Status `json:"status"`
	Idempotent bool   `json:"idempotent,omitempty"`
}

func deregister(dir *directory, in step.Input, body []byte) (step.Effects, error) {
	var c struct {
		Generation int64 `json:"generation"`
	}
	if err := step.Decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	if c.Generation == 0 {
		return step.Effects{}, wire.Errorf(wire.BodyInvalid, "generation is missing").
			WithHint("give the generation that register answered, so that a process that was replaced ends nothing but itself")
	}
	e, err := dir.find(in.From)
	switch {
	case err != nil:
		return step.Effects{}, err
	case e == nil:
		return step.Effects{}, notFound(in.From)
	}
	next, move, refusal := Deregister(&e.agent, c.Generation, in.NowMS)
	if refusal != nil {
		return step.Effects{}, refusal
	}
	reply := Deregistered{AgentID: in.From, Generation: c.Generation, Status: next.Status, Idempotent: move == Move{}}
	if reply.Idempotent {
		return step.Effects{Reply: reply}, nil
	}
	effects := dir.live(e, next, move)
	effects.Reply = reply
	return effects, nil
}

// Sighting is one entry of a roll-up: the last heartbeat of an agent.
type Sighting struct {
	ID         string `json:"id"`
	Generation int64  `json:"generation,omitempty"` // 0: it named none
	AgoMS      int64  `json:"ago_ms"`               // before the roll-up was made; clamped to 0
}

// RollUp is the body of seen, which comes from the bridge alone.
type RollUp struct {
	Agents []Sighting `json:"agents"` // at most MaxSeen
}

// seen counts a roll-up. What has changed since a heartbeat was admitted
// decides: of an agent that has gone, or of a generation that has ended, it
// counts no more.
func seen(dir *directory, in step.Input, body []byte) (step.Effects, error) {
	if in.From != wire.Bridge {
		return step.Effects{}, wire.Errorf(wire.IdentityMismatch, "agents.seen is a command of the bridge itself").
			WithHint("use agents.heartbeat, or publish on the agent's heartbeat subject")
	}
	var c RollUp
	if err := step.Decode(body, &c); err != nil {
		return step.Effects{}, err
	}
	if len(c.Agents) > MaxSeen {
		return step.Effects{}, wire.Errorf(wire.BodyInvalid, "agents are %d, and may be %d at most", len(c.Agents), MaxSeen)
	}
	var effects step.Effects
	for _, s := range c.Agents {
		e := dir.byID[s.ID]
		if e == nil || e.damaged != nil || Admissible(&e.agent, s.Generation) != nil {
			continue
		}
		next, move := Seen(&e.agent, in.NowMS, s.AgoMS, reasonHeartbeat)
		one := dir.live(e, next, move)
		effects.Transitions = append(effects.Transitions, one.Transitions...)
		effects.Notices = append(effects.Notices, one.Notices...)
	}
	effects.Reply = struct{}{}
	return effects, nil
}
