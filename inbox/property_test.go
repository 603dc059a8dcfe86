package inbox_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"signalbox/inbox"
	"signalbox/step"
	"signalbox/wire"
)

// perform has the machine do it and says what became visible.
func (r *rig) perform(a act) (out answer) {
	r.Helper()
	r.nowMS += a.advance
	before := r.lastID
	defer func() { r.lastID = before + 1 }() // each act is a row, so that the draw knows their numbers
	command := func(verb, body string) (effects []step.Effects, refusal *wire.Error) {
		e, refusal := r.try(a.agent, verb, body)
		return []step.Effects{e}, refusal
	}
	var effects []step.Effects
	var refusal *wire.Error
	switch a.kind {
	case "send":
		d := draft{from: a.agent, to: a.to, priority: a.priority, ttl: time.Duration(a.ttl) * time.Millisecond, messageID: messageIDOfRow(r.lastID + 1)}
		if a.request {
			d.kind = wire.TypeRequest
		}
		if len(a.topics) > 0 {
			d.topic = a.topics[0]
		}
		_, e := r.send(d)
		effects = []step.Effects{e}
	case "register":
		effects = []step.Effects{r.enrol(a.agent, agent{live: a.live, topics: a.topics})}
	case "subscribe":
		if r.agents[a.agent] == nil {
			return out
		}
		r.agents[a.agent].offline = false
		effects = []step.Effects{r.subscribe(a.agent, a.topics...)}
	case "leave":
		if r.agents[a.agent] != nil {
			r.agents[a.agent].offline = true
		}
	case "hold":
		r.held[a.to] = a.agent
	case "close":
		effects = []step.Effects{r.apply(r.input("op", step.Notice{Machine: "roles", What: "closed", Key: a.to}))}
	case "tick":
		effects = r.tick()
	case "fetch":
		effects, refusal = command("fetch", a.fetch.body())
	case "ack":
		effects, refusal = command("ack", jsonOf(map[string]any{"ids": a.names}))
	case "reject":
		effects, refusal = command("reject", jsonOf(map[string]any{"id": a.names[0], "reason": "no"}))
	case "redrive":
		effects, refusal = command("redrive", jsonOf(map[string]any{"message_id": a.names[0], "recipient": a.to}))
	}
	if refusal != nil {
		return answer{code: string(refusal.Code)}
	}
	for _, e := range effects {
		out.see(e)
	}
	if a.kind == "close" {
		slices.Sort(out.told)
	}
	return out
}

func (out *answer) see(e step.Effects) {
	switch reply := e.Reply.(type) {
	case inbox.Fetched:
		var got []string
		for _, raw := range reply.Messages {
			var m struct {
				ID, Attempts int64
				Recipient    string
			}
			if err := json.Unmarshal(raw, &m); err != nil {
				panic(err)
			}
			got = append(got, fmt.Sprintf("%d for %s, attempt %d", m.ID, m.Recipient, m.Attempts))
		}
		out.reply = fmt.Sprint(got, reply.More)
	case inbox.AckReply:
		out.reply = fmt.Sprint(reply.Acked)
	case inbox.RejectReply:
		out.reply = fmt.Sprint(reply.ID, reply.Rejected, reply.Idempotent)
	case inbox.RedriveReply:
		out.reply = fmt.Sprint(reply.ID, reply.Recipient, reply.ExpiresAtMS, reply.Idempotent)
	}
	for _, h := range e.Told {
		b := h.Body.(map[string]any)
		line := fmt.Sprintf("%s.%s %v", h.Key, h.What, b["id"])
		switch h.What {
		case "dead":
			line += fmt.Sprintf(" %v %v %v", b["recipient"], b["reason"], b["attempts"])
		case "redriven":
			line += fmt.Sprintf(" %v", b["recipient"])
		}
		out.told = append(out.told, line)
	}
	out.sent += len(e.Messages)
	out.woken = append(out.woken, e.Woken...)
	out.owed += e.Deliveries
}

// expect is what the model says must come of it. The rig has done it already,
// so its row and time are those of the act.
func (m *model) expect(r *rig, a act) answer {
	id, now := r.lastID, r.nowMS
	who := []string{a.agent}
	for _, role := range slices.Sorted(maps.Keys(r.held)) {
		if r.held[role] == a.agent {
			who = append(who, "role:"+role)
		}
	}
	switch known := r.agents[a.agent]; a.kind {
	case "send":
		return m.send(r, a, id, now)
	case "register":
		if !a.live {
			return m.subscribe(a.agent, a.topics, now)
		}
	case "subscribe":
		if known != nil && !known.live {
			return m.subscribe(a.agent, a.topics, now)
		}
	case "tick":
		return m.tick(id, now)
	case "close":
		return m.closeRole(a.to, id, now)
	case "fetch":
		if known == nil {
			return answer{code: "AGENT_NOT_FOUND"}
		}
		return m.fetch(a.agent, who, known.registeredID, id, now, a.fetch)
	case "ack":
		return m.ackAll(who, a.names, id, now)
	case "reject":
		return m.reject(who, a.names[0], id, now)
	case "redrive":
		return m.redrive(a.names[0], a.to, id, now, func(topic string) []string {
			list, _, _ := r.Subscribers(nil, topic)
			return list
		})
	}
	return answer{}
}

func (m *model) send(r *rig, a act, id, now int64) (out answer) {
	o := owed{id: id, priority: int64(a.priority), queuedAt: now, expiresAt: now + a.ttl, ttl: a.ttl, messageID: messageIDOfRow(id), from: a.agent, sentTo: a.to, request: a.request}
	if len(a.topics) > 0 {
		o.topic = a.topics[0]
	}
	to := []string{a.to}
	switch topic, isTopic := strings.CutPrefix(a.to, "topic:"); {
	case isTopic:
		o.topic = topic
		subscribers, live := []string{}, 0
		for _, name := range someAgents {
			if known := r.agents[name]; known != nil && !known.offline && slices.Contains(known.topics, topic) {
				if known.live {
					live++
				} else {
					subscribers = append(subscribers, name)
				}
			}
		}
		if len(subscribers)+live > 0 {
			to, out.woken = subscribers, subscribers
		}
	case strings.HasPrefix(a.to, "role:"):
		out.woken = to
	case a.to == wire.Bridge:
		to = nil
	case r.agents[a.to] == nil:
		out.told = []string{fmt.Sprintf("%s.unknown_recipient %d", a.agent, id)}
	case r.agents[a.to].live:
		to = nil
	default:
		out.woken = to
	}
	for _, o.recipient = range to {
		m.add(o)
	}
	out.owed = len(to)
	return out
}

// dump is every delivery, and the reason of its dead letter.
func (r *rig) dump() (rows []string) {
	r.Helper()
	list, err := r.db.db.Query(`SELECT d.id, d.recipient, coalesce(topic, ''), priority, queued_at_ms, expires_at_ms, attempts, coalesce(d.message_id, ''),
		coalesce(delivered_at_ms, 0), coalesce(delivered_id, 0), coalesce(delivered_to, ''), coalesce(outcome, ''), coalesce(outcome_at_ms, 0),
		coalesce(outcome_id, 0), coalesce(acked_at_ms, 0), coalesce(redriven_id, 0), coalesce(l.reason, ''),
		coalesce(l.failed_at_ms = outcome_at_ms AND l.cause = outcome_id AND l.message_id <> '' AND l.last_error <> '', outcome IS NULL OR outcome = 'acked')
		FROM deliveries d LEFT JOIN dead_letters l ON l.id = d.id AND l.recipient = d.recipient ORDER BY d.id, d.recipient`)
	if err != nil {
		r.Fatal(err)
	}
	defer list.Close()
	for list.Next() {
		var id, priority, queued, expires, attempts, at, by, outcomeAt, outcomeID, acked, redriven int64
		var recipient, topic, messageID, to, outcome, reason string
		var letter bool
		if err := list.Scan(&id, &recipient, &topic, &priority, &queued, &expires, &attempts, &messageID, &at, &by, &to, &outcome, &outcomeAt, &outcomeID,
			&acked, &redriven, &reason, &letter); err != nil {
			r.Fatal(err)
		}
		if !letter {
			r.Fatalf("the delivery of row %d for %s, %q, has a wrong dead letter %q", id, recipient, outcome, reason)
		}
		rows = append(rows, fmt.Sprintf("%09d %s ", id, recipient)+fmt.Sprint(topic, priority, queued, expires, attempts, messageID, at, by, to, outcome, outcomeAt,
			outcomeID, acked, redriven, reason))
	}
	if err := list.Err(); err != nil {
		r.Fatal(err)
	}
	return rows
}

func (r *rig) totals() inbox.Totals {
	r.Helper()
	t, err := inbox.ReadTotals(r.db)
	if err != nil {
		r.Fatal(err)
	}
	return t
}

// Whatever happens, in whatever order, and wherever batches end, the machine
// does what the model says, and its tables are the model's.
func TestTheMachineDoesWhatTheModelSays(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		acts, sent := make([]act, rapid.IntRange(1, 60).Draw(rt, "length")), []int64(nil)
		for i := range acts {
			if acts[i] = drawAct(rt, sent); acts[i].kind == "send" {
				sent = append(sent, int64(i)+1)
			}
		}
		one, none, some := newRig(t), newRig(t), newRig(t)
		rigs := []*rig{one, none, some}
		m := &model{}
		for i, a := range acts {
			got := one.perform(a)
			want := m.expect(one, a)
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				rt.Fatalf("act %d %+v at %d gives\n%+v, want\n%+v", i, a, one.nowMS, got, want)
			}
			one.flush()
			if a.kind == "poll" {
				checkPoll(rt, one, m, a)
			}
			for _, r := range rigs[1:] {
				if other := r.perform(a); fmt.Sprintf("%+v", other) != fmt.Sprintf("%+v", got) {
					rt.Fatalf("act %d %+v gives\n%+v in another batch, want\n%+v", i, a, other, got)
				}
			}
			if a.flush {
				some.flush()
			}
			if a.forget {
				some.m.Forget()
			}
			checkInvariants(rt, one, a)
		}
		want := m.rows()
		for i, r := range rigs {
			r.flush()
			if got := r.dump(); !slices.Equal(got, want) {
				rt.Fatalf("the tables of run %d are\n%s\nwant\n%s", i, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if got, want := r.totals(), (inbox.Totals{Deliveries: m.made, Delivered: m.delivered, WaitMS: m.wait, Acked: m.acks, Dead: m.dies}); got != want {
				rt.Fatalf("the totals of run %d are %+v, want %+v", i, got, want)
			}
			if n := r.count(`SELECT count(*) FROM inbox_moves`); n != 0 {
				rt.Fatalf("run %d has %d moves left", i, n)
			}
		}
	})
}

// checkPoll compares a look with what a fetch would find.
func checkPoll(rt *rapid.T, r *rig, m *model, a act) {
	known := r.agents[a.agent]
	polled, refusal := r.poll(a.agent, a.fetch.body())
	if known == nil {
		if refusal == nil || refusal.Code != wire.AgentNotFound {
			rt.Fatalf("a poll of nobody: %+v, %v", polled, refusal)
		}
		return
	}
	who := []string{a.agent}
	roles, err := r.Held(nil, a.agent)
	for _, role := range roles {
		who = append(who, "role:"+role)
	}
	ready := len(m.fetchable(a.agent, who, known.registeredID, r.nowMS, a.fetch)) > 0
	in := int64(0)
	if !ready {
		in = m.nextDue(a.agent, who, r.nowMS, a.fetch)
	}
	if err != nil || refusal != nil || polled.Ready != ready || polled.InMS != in || !slices.Equal(polled.Keys, who) {
		rt.Fatalf("a poll says %+v, %v; want %v in %d of %v", polled, refusal, ready, in, who)
	}
}

// checkInvariants looks at what must hold at any time.
func checkInvariants(rt *rapid.T, r *rig, a act) {
	if a.kind == "tick" {
		if n := r.count(`SELECT count(*) FROM deliveries WHERE outcome IS NULL AND expires_at_ms <= ?`, r.nowMS); n != 0 {
			rt.Fatalf("%d open deliveries are past their expiry after the tick", n)
		}
	}
	for what, query := range map[string]string{
		"dead letters without a delivery that is dead": `SELECT count(*) FROM dead_letters l LEFT JOIN deliveries d ON d.id = l.id AND d.recipient = l.recipient
			WHERE d.outcome IS NULL OR d.outcome = 'acked'`,
		"dead deliveries without a letter": `SELECT count(*) FROM deliveries d WHERE outcome IN ('expired', 'rejected', 'dead_letter')
			AND NOT EXISTS (SELECT 1 FROM dead_letters l WHERE l.id = d.id AND l.recipient = d.recipient)`,
		"deliveries half in flight": `SELECT count(*) FROM deliveries WHERE (delivered_at_ms IS NULL) <> (delivered_id IS NULL)
			OR (delivered_at_ms IS NULL) <> (delivered_to IS NULL) OR delivered_at_ms IS NOT NULL AND (attempts = 0 OR message_id IS NULL)`,
		"outcomes without a cause": `SELECT count(*) FROM deliveries WHERE (outcome IS NULL) <> (outcome_id IS NULL) OR (outcome IS 'acked') <> (acked_at_ms IS NOT NULL)`,
		"fetches by strangers":     `SELECT count(*) FROM deliveries WHERE delivered_to <> recipient AND recipient NOT LIKE 'role:%'`,
	} {
		if n := r.count(query); n != 0 {
			rt.Fatalf("after %+v there are %d %s", a, n, what)
		}
	}
}
