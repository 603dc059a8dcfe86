package agents_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// person is what the model knows of an agent. The model is written from the
// documentation, with none of the machine's code: it keeps the times at which
// things happened, and says what they mean when asked.
type person struct {
	generation int64
	body       string // of the registration; equal bodies are equal registrations here
	row        int64
	registered int64
	ttl        int64
	live       bool
	topics     map[string]bool

	seen  int64 // the last sign of life
	until int64 // the end of the lease
	state string
	since int64
	left  bool // deregistered
}

// model is all of them, and what they should have announced.
type model struct {
	people map[string]person
	moves  []string
}

func newModel() *model { return &model{people: map[string]person{}} }

func (m *model) clone() *model {
	c := &model{people: map[string]person{}, moves: slices.Clone(m.moves)}
	for id, p := range m.people {
		p.topics = maps.Clone(p.topics)
		c.people[id] = p
	}
	return c
}

func (m *model) become(id string, p *person, state string, now int64, why string) {
	m.moves = append(m.moves, fmt.Sprintf("%s: %s>%s %s", id, p.state, state, why))
	p.state, p.since = state, now
}

// arrive is what happens before a message is judged.
func (m *model) arrive(id string, now int64) {
	if p, ok := m.people[id]; ok && p.state == "online" && p.until <= now {
		m.become(id, &p, "stale", now, "lease_expired")
		m.people[id] = p
	}
}

// alive is a sign of life at the time seen.
func (m *model) alive(id string, now, seen int64, why string) {
	p, ok := m.people[id]
	if !ok || p.left {
		return
	}
	if seen > p.seen {
		p.seen = seen
	}
	if seen+p.ttl > p.until {
		p.until = seen + p.ttl
	}
	if p.state != "online" && p.until > now {
		m.become(id, &p, "online", now, why)
	}
	m.people[id] = p
}

// wanted is a registration.
type wanted struct {
	topics  []string
	live    bool
	ttl     int64
	session string
}

func (w wanted) body() string {
	delivery := "inbox"
	if w.live {
		delivery = "live"
	}
	return fmt.Sprintf(`{"topics":["%s"],"delivery":"%s","heartbeat_ttl_ms":%d,"session_id":"%s"}`, strings.Join(w.topics, `","`), delivery, w.ttl, w.session)
}

func (m *model) register(id string, now, row int64, w wanted) {
	p, ok := m.people[id]
	if ok && !p.left && w.session != "" && p.body == w.body() {
		m.alive(id, now, now, "renewed")
		return
	}
	fresh := person{generation: p.generation + 1, body: w.body(), row: row, registered: now, ttl: w.ttl, live: w.live, topics: map[string]bool{},
		seen: now, until: now + w.ttl, state: p.state}
	for _, t := range w.topics {
		fresh.topics[t] = true
	}
	m.become(id, &fresh, "online", now, "registered")
	m.people[id] = fresh
}

// heartbeat answers the code of the refusal.
func (m *model) heartbeat(id string, now, generation int64) string {
	p, ok := m.people[id]
	switch {
	case !ok:
		return "AGENT_NOT_FOUND"
	case p.left:
		return "AGENT_DEREGISTERED"
	case generation != 0 && generation != p.generation:
		return "STALE_GENERATION"
	}
	m.alive(id, now, now, "heartbeat")
	return ""
}

func (m *model) deregister(id string, now, generation int64) string {
	p, ok := m.people[id]
	switch {
	case generation == 0:
		return "BODY_INVALID"
	case !ok:
		return "AGENT_NOT_FOUND"
	case generation != p.generation:
		return "STALE_GENERATION"
	case p.left:
		return ""
	}
	m.become(id, &p, "offline", now, "deregistered")
	if p.left = true; p.until > now {
		p.until = now
	}
	m.people[id] = p
	return ""
}

func (m *model) subscribe(id string, topics []string, replace bool) string {
	p, ok := m.people[id]
	switch {
	case !ok:
		return "AGENT_NOT_FOUND"
	case p.left:
		return "AGENT_DEREGISTERED"
	}
	next := map[string]bool{}
	if !replace {
		next = maps.Clone(p.topics)
	}
	for _, t := range topics {
		next[t] = true
	}
	p.topics = next
	m.people[id] = p
	return ""
}

// end is when the state of an agent ends by itself; 0 for never.
func (p person) end() int64 {
	switch p.state {
	case "online":
		return p.until
	case "stale":
		return p.since + offlineAfter
	}
	return 0
}

// due are the agents whose time is over, in order.
func (m *model) due(now int64) []string {
	var ids []string
	for id, p := range m.people {
		if end := p.end(); end != 0 && end <= now {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		if x, y := m.people[a].end(), m.people[b].end(); x != y {
			return int(x - y)
		}
		return strings.Compare(a, b)
	})
	return ids
}

func (m *model) tick(now int64, ids []string) {
	for _, id := range ids {
		p := m.people[id]
		if p.state == "online" {
			m.become(id, &p, "stale", now, "lease_expired")
		} else {
			m.become(id, &p, "offline", now, "offline_after")
		}
		m.people[id] = p
	}
}

func (m *model) start(now, last int64) {
	for id, p := range m.people {
		if p.state == "online" && p.until > last && p.until < now+p.ttl {
			p.until = now + p.ttl
			m.people[id] = p
		}
	}
}

// hear are who hears a topic.
func (m *model) hear(topic string) (inbox []string, live int) {
	for id, p := range m.people {
		switch {
		case p.state == "offline" || !p.topics[topic]:
		case p.live:
			live++
		default:
			inbox = append(inbox, id)
		}
	}
	slices.Sort(inbox)
	return inbox, live
}
