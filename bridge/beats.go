package bridge

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/agents"
	"signalbox/wire"
)

// Bounds of heartbeats.
const (
	maxBeats   = 65536 // agents between two roll-ups
	maxRefused = 4096  // refusals remembered between two roll-ups
	beatWithin = 2 * time.Second
)

// verbSeen is the command that a roll-up is.
const verbSeen = "seen"

// beat is the last heartbeat of an agent.
type beat struct {
	at         time.Time
	generation int64
	body       string // what was admitted
}

// beats are the heartbeats since the last roll-up. They are not registered one
// by one: whoever beats in time costs one entry of one row a roll-up.
type beats struct {
	mu      sync.Mutex // guards what follows
	seen    map[string]beat
	refused map[string]string // by agent, the body that was refused
}

func newBeats() *beats { return &beats{seen: map[string]beat{}, refused: map[string]string{}} }

// again counts one more heartbeat of an agent that has one already since the
// last roll-up; false where it must be looked at first. A body that was just
// refused is refused, without a look.
func (b *beats) again(agent, body string, at time.Time) (counted, refused bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last, ok := b.seen[agent]; ok && last.body == body {
		last.at = at
		b.seen[agent] = last
		return true, false
	}
	text, ok := b.refused[agent]
	return false, ok && text == body
}

// admit counts a heartbeat that was looked at; false when there are too many.
func (b *beats) admit(agent, body string, generation int64, at time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.seen[agent]; !ok && len(b.seen) >= maxBeats {
		return false
	}
	b.seen[agent] = beat{at: at, generation: generation, body: body}
	return true
}

// refuse remembers that a heartbeat was refused.
func (b *beats) refuse(agent, body string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.refused) < maxRefused {
		b.refused[agent] = body
	}
}

// take are the roll-ups of all heartbeats since the last call, sorted by agent.
func (b *beats) take(now time.Time) []agents.RollUp {
	b.mu.Lock()
	seen := b.seen
	if len(seen) > 0 {
		b.seen = make(map[string]beat, len(seen))
	}
	clear(b.refused)
	b.mu.Unlock()
	var list []agents.RollUp
	for some := range slices.Chunk(slices.Sorted(maps.Keys(seen)), agents.MaxSeen) {
		up := agents.RollUp{Agents: make([]agents.Sighting, len(some))}
		for i, id := range some {
			up.Agents[i] = agents.Sighting{ID: id, Generation: seen[id].generation, AgoMS: max(0, now.Sub(seen[id].at).Milliseconds())}
		}
		list = append(list, up)
	}
	return list
}

// rollUp appends what has been seen since the last roll-up. What the log does
// not take is lost, and the agents beat again.
func (b *Bridge) rollUp() {
	if b.machines.beater == nil {
		return
	}
	for _, up := range b.beats.take(time.Now()) {
		if err := b.appendCommand(b.machines.beater.Name(), verbSeen, up); err != nil {
			b.log.Warn("a roll-up of heartbeats was not sent", "err", err)
		}
	}
}

// listen counts heartbeats until the function that it gives is called.
func (b *Bridge) listen() (stop func(), err error) {
	if b.machines.beater == nil {
		return func() {}, nil
	}
	sub, err := b.nc.Subscribe(b.config.Root.Heartbeat("*"), b.heard)
	if err != nil {
		return nil, fmt.Errorf("listen to heartbeats: %w", err)
	}
	if err := sub.SetPendingLimits(pendingMsgs, pendingBytes); err != nil {
		return nil, fmt.Errorf("listen to heartbeats: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // it fails only where the connection has ended
}

// heard counts one heartbeat. Who is unknown, or of an older generation, is
// told where it asked.
func (b *Bridge) heard(m *nats.Msg) {
	addr, err := b.config.Root.Parse(m.Subject)
	if err != nil {
		b.answerBeat(m, err)
		return
	}
	body := ""
	if len(m.Data) <= 256 { // a longer one is no body of a heartbeat that names a generation
		body = string(m.Data)
	}
	now := time.Now()
	counted, refused := b.beats.again(addr.From, body, now)
	if counted || refused && m.Reply == "" {
		b.answerBeat(m, nil)
		return
	}
	generation, err := b.admitBeat(addr.From, []byte(body))
	switch _, refusal := asRefusal(err); {
	case refusal:
		b.beats.refuse(addr.From, body)
	case err != nil:
		b.log.Warn("a heartbeat was not looked at", "agent", addr.From, "err", err)
		err = wire.Errorf(wire.NotReady, "the register cannot be read").WithHint("beat again")
	case !b.beats.admit(addr.From, body, generation, now):
		b.metrics.beatsDropped.Inc()
		err = wire.Errorf(wire.TooManyRequests, "%d agents beat already", maxBeats).WithHint("send agents.heartbeat")
	}
	b.answerBeat(m, err)
}

func (b *Bridge) admitBeat(agent string, body []byte) (generation int64, err error) {
	ctx, cancel := context.WithTimeout(b.life, beatWithin)
	defer cancel()
	err = b.reader.View(ctx, func(tx *sql.Tx) error {
		generation, err = b.machines.beater.Admit(tx, agent, body)
		return err
	})
	return generation, err
}

// answerBeat answers a heartbeat that was sent as a request.
func (b *Bridge) answerBeat(m *nats.Msg, err error) {
	if m.Reply == "" {
		return
	}
	reply := &nats.Msg{Subject: m.Reply}
	if refusal, ok := asRefusal(err); ok {
		b.metrics.refused(refusal.Code)
		reply.Header = nats.Header{wire.HeaderError: {headerText(refusal.Error())}, wire.HeaderErrorCode: {strconv.Itoa(refusal.Code.Status())}}
		reply.Data = refusal.Body()
	} else {
		reply.Data, _ = json.Marshal(map[string]int64{"rollup_ms": b.config.Rollup.Milliseconds()}) // numbers always marshal
	}
	if err := b.nc.PublishMsg(reply); err != nil {
		b.metrics.replyFailures.Inc()
	}
}
