package bridge

import (
	"cmp"
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

// beatKey is who beats, and as which generation, 0 for any.
type beatKey struct {
	agent      string
	generation int64
}

// beats are the heartbeats since the last roll-up. They are not registered one
// by one: whoever beats in time costs one entry of one row a roll-up.
type beats struct {
	mu      sync.Mutex // guards what follows
	seen    map[beatKey]time.Time
	refused map[beatKey]struct{}
}

func newBeats() *beats { return &beats{seen: map[beatKey]time.Time{}, refused: map[beatKey]struct{}{}} }

// again counts one more heartbeat of an agent that has one already since the
// last roll-up; otherwise it must be looked at first. One that was just refused
// is refused without a look.
func (b *beats) again(key beatKey, at time.Time) (counted, refused bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.seen[key]; ok {
		b.seen[key] = at
		return true, false
	}
	_, refused = b.refused[key]
	return false, refused
}

// admit counts a heartbeat that was looked at; false when there are too many.
func (b *beats) admit(key beatKey, at time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.seen) >= maxBeats {
		return false
	}
	b.seen[key] = at
	return true
}

// refuse remembers that a heartbeat was refused.
func (b *beats) refuse(key beatKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.refused) < maxRefused {
		b.refused[key] = struct{}{}
	}
}

// sightingBytes is what an entry of a roll-up takes beside its agent's id.
const sightingBytes = 64

// take are the roll-ups of all heartbeats since the last call, sorted by agent,
// each of at most about most bytes.
func (b *beats) take(now time.Time, most int) []agents.RollUp {
	b.mu.Lock()
	seen := b.seen
	if len(seen) > 0 {
		b.seen = make(map[beatKey]time.Time, len(seen))
	}
	clear(b.refused)
	b.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(seen), func(a, b beatKey) int {
		return cmp.Or(cmp.Compare(a.agent, b.agent), cmp.Compare(a.generation, b.generation))
	})
	var list []agents.RollUp
	size := most + 1
	for _, key := range keys {
		size += len(key.agent) + sightingBytes
		if last := len(list) - 1; last < 0 || size > most || len(list[last].Agents) == agents.MaxSeen {
			list, size = append(list, agents.RollUp{}), len(key.agent)+sightingBytes
		}
		up := &list[len(list)-1]
		up.Agents = append(up.Agents, agents.Sighting{ID: key.agent, Generation: key.generation,
			AgoMS: max(0, now.Sub(seen[key]).Milliseconds())})
	}
	return list
}

// rollUp appends what has been seen since the last roll-up. What the log does
// not take is lost, and the agents beat again.
func (b *Bridge) rollUp() {
	if b.machines.beater == nil {
		return
	}
	for _, up := range b.beats.take(time.Now(), int(b.nc.MaxPayload()/2)) {
		if err := b.appendCommand(b.machines.beater.Name(), verbSeen, up); err != nil {
			b.log.Warn("a roll-up of heartbeats was not sent", "err", err)
		}
	}
}

// listen counts heartbeats until the function that it gives has returned.
func (b *Bridge) listen() (stop func(), err error) {
	if b.machines.beater == nil {
		return func() {}, nil
	}
	sub, err := b.nc.Subscribe(b.config.Root.Heartbeat("*"), b.heard)
	if err == nil {
		err = sub.SetPendingLimits(pendingMsgs, pendingBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("listen to heartbeats: %w", err)
	}
	b.metrics.beatsLost = sub.Dropped
	ended := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(ended) })
	return func() {
		if sub.Drain() != nil { // the connection has ended, and so has the callback
			return
		}
		bound := time.NewTimer(beatWithin)
		defer bound.Stop()
		select {
		case <-ended:
		case <-bound.C:
		}
	}, nil
}

// heard counts one heartbeat. Who is unknown, or of an older generation, is
// told where it asked.
func (b *Bridge) heard(m *nats.Msg) {
	addr, err := b.config.Root.Parse(m.Subject)
	if err != nil {
		b.answerBeat(m, err)
		return
	}
	key, now := beatKey{addr.From, b.machines.beater.Stated(m.Data)}, time.Now()
	counted, refused := b.beats.again(key, now)
	if m.Reply == "" && (counted || refused) {
		return // who asks is looked at: much may have changed since
	}
	_, err = b.admitBeat(addr.From, m.Data)
	switch _, refusal := asRefusal(err); {
	case refusal:
		b.beats.refuse(key)
	case err != nil:
		b.log.Warn("a heartbeat was not looked at", "agent", addr.From, "err", err)
		err = wire.Errorf(wire.NotReady, "the register cannot be read").WithHint("beat again")
	case !b.beats.admit(key, now):
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
