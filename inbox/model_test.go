package inbox_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The model says what must come of everything, without tables: one list of
// deliveries that every rule walks through. It shares no code with the machine.

// owed is a delivery.
type owed struct {
	id, priority, queuedAt, expiresAt int64
	recipient, topic, messageID, from string
	sentTo                            string
	request                           bool
	ttl                               int64
	attempts                          int64
	fetchedAt, fetchedID              int64
	fetchedBy                         string
	outcome                           string
	outcomeAt, outcomeID, redrivenID  int64
	reason, lastError                 string // of the dead letter, while there is one
	foundByMessageID                  bool
}

func (o *owed) isOpen() bool { return o.outcome == "" }

type model struct {
	list                              []*owed
	made, delivered, wait, acks, dies int64
}

// answer is what becomes visible of a step.
type answer struct {
	reply string // as Go prints the parts that matter
	code  string
	told  []string
	sent  int
	woken []string
	owed  int
}

func (m *model) add(o owed) {
	m.list = append(m.list, &o)
	m.made++
}

func (m *model) mine(who []string) (list []*owed) {
	for _, o := range m.list {
		if slices.Contains(who, o.recipient) {
			list = append(list, o)
		}
	}
	return list
}

// inFetchOrder sorts a copy.
func inFetchOrder(list []*owed) []*owed {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b *owed) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.id, b.id), strings.Compare(a.recipient, b.recipient))
	})
	return list
}

type fetchOptions struct {
	most        int
	topics      []string
	autoAck     bool
	redeliverMS int64
}

// fetchable are what a fetch would find.
func (m *model) fetchable(agent string, who []string, registeredID, now int64, f fetchOptions) (list []*owed) {
	for _, o := range inFetchOrder(m.mine(who)) {
		again := o.fetchedID == 0 || o.fetchedAt+f.redeliverMS <= now || o.fetchedID < registeredID || o.fetchedBy != agent
		if o.isOpen() && o.expiresAt > now && again && (len(f.topics) == 0 || slices.Contains(f.topics, o.topic)) {
			list = append(list, o)
		}
	}
	return list
}

func (m *model) fetch(agent string, who []string, registeredID, id, now int64, f fetchOptions) answer {
	list := m.fetchable(agent, who, registeredID, now, f)
	var got []string
	for i, o := range list {
		if i == f.most {
			break
		}
		if o.attempts++; o.attempts == 1 {
			m.delivered++
			m.wait += now - o.queuedAt
		}
		o.fetchedAt, o.fetchedID, o.fetchedBy, o.foundByMessageID = now, id, agent, true
		if f.autoAck {
			m.ack(o, id, now)
		}
		got = append(got, fmt.Sprintf("%d for %s, attempt %d", o.id, o.recipient, o.attempts))
	}
	return answer{reply: fmt.Sprint(got, len(list) > f.most)}
}

func (m *model) ack(o *owed, id, now int64) {
	o.outcome, o.outcomeAt, o.outcomeID = "acked", now, id
	m.acks++
}

func (m *model) bury(o *owed, id, now int64, outcome, reason, text string) string {
	o.outcome, o.outcomeAt, o.outcomeID, o.reason, o.lastError = outcome, now, id, reason, text
	m.dies++
	return fmt.Sprintf("%s.dead %d %s %s %d", o.from, o.id, o.recipient, reason, o.attempts)
}

// byName are the open deliveries that a row number or a message id means: of a
// message id those in flight, else the first that was not fetched.
func (m *model) byName(who []string, name any) (list []*owed) {
	var fresh []*owed
	for _, recipient := range who {
		for _, o := range inFetchOrder(m.mine([]string{recipient})) {
			switch {
			case !o.isOpen():
			case name == o.id:
				list = append(list, o)
			case name != o.messageID:
			case o.fetchedID != 0:
				list = append(list, o)
			default:
				fresh = append(fresh, o)
			}
		}
	}
	if len(list) == 0 && len(fresh) > 0 {
		list = fresh[:1]
	}
	slices.SortFunc(list, func(a, b *owed) int {
		return cmp.Or(cmp.Compare(a.id, b.id), strings.Compare(a.recipient, b.recipient))
	})
	return list
}

// ackAll acks rows and message ids; what was not fetched is found by its message
// id only after all others.
func (m *model) ackAll(who []string, names []any, id, now int64) answer {
	n, late := 0, []any{}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		list := m.byName(who, name)
		if _, text := name.(string); text && len(list) > 0 && list[0].fetchedID == 0 {
			late = append(late, name)
			continue
		}
		for _, o := range list {
			m.ack(o, id, now)
			n++
		}
	}
	for _, name := range late {
		for _, o := range m.byName(who, name) {
			m.ack(o, id, now)
			n++
		}
	}
	return answer{reply: fmt.Sprint(n)}
}

func (m *model) reject(who []string, name any, id, now int64) (a answer) {
	list := m.byName(who, name)
	if len(list) > 0 {
		for _, o := range list {
			a.told = append(a.told, m.bury(o, id, now, "rejected", "rejected", "no"))
		}
		a.reply = fmt.Sprint(list[0].id, len(list), false)
		return a
	}
	for _, o := range m.mine(who) {
		if o.reason == "rejected" && (name == o.id || name == o.messageID) {
			list = append(list, o)
		}
	}
	if len(list) == 0 {
		return answer{code: "NOT_FOUND"}
	}
	first := slices.MinFunc(list, func(a, b *owed) int { return cmp.Compare(a.id, b.id) })
	return answer{reply: fmt.Sprint(first.id, len(list), true)}
}

// redrive puts a dead letter back; subscribers are those of a topic that are
// owed deliveries, sorted.
func (m *model) redrive(name any, recipient string, id, now int64, subscribers func(topic string) []string) answer {
	var dead, back []*owed
	for _, o := range m.list {
		switch {
		case name != o.id && name != o.messageID || recipient != "" && recipient != o.recipient:
		case o.reason != "":
			dead = append(dead, o)
		case o.isOpen() && o.redrivenID != 0:
			back = append(back, o)
		}
	}
	for _, o := range m.list {
		// What went from the topic to a subscriber is still meant by the topic.
		named := name == o.id || name == o.messageID
		if named && strings.HasPrefix(recipient, "topic:") && o.recipient != recipient && o.sentTo == recipient && o.isOpen() && o.redrivenID != 0 {
			back = append(back, o)
		}
	}
	switch {
	case len(dead) > 1:
		return answer{code: "RECIPIENT_REQUIRED"}
	case len(dead) == 0 && len(back) == 0:
		return answer{code: "NOT_FOUND"}
	case len(dead) == 0:
		o := slices.MaxFunc(back, func(a, b *owed) int { return cmp.Compare(a.redrivenID, b.redrivenID) })
		return answer{reply: fmt.Sprint(o.id, o.recipient, o.expiresAt, true)}
	}
	o := dead[0]
	if topic, waited := strings.CutPrefix(o.recipient, "topic:"); waited {
		for _, agent := range subscribers(topic) {
			if !slices.ContainsFunc(m.list, func(other *owed) bool { return other.id == o.id && other.recipient == agent }) {
				o.recipient = agent
				break
			}
		}
	}
	o.outcome, o.outcomeAt, o.outcomeID, o.reason, o.lastError = "", 0, 0, "", ""
	o.fetchedAt, o.fetchedID, o.fetchedBy = 0, 0, ""
	o.queuedAt, o.expiresAt, o.redrivenID, o.foundByMessageID = now, now+o.ttl, id, true
	return answer{reply: fmt.Sprint(o.id, o.recipient, o.expiresAt, false), woken: []string{o.recipient},
		told: []string{fmt.Sprintf("%s.redriven %d %s", o.from, o.id, o.recipient)}}
}

// tick lets what is over expire.
func (m *model) tick(id, now int64) (a answer) {
	over := []*owed{}
	for _, o := range m.list {
		if o.isOpen() && o.expiresAt <= now {
			over = append(over, o)
		}
	}
	slices.SortFunc(over, func(a, b *owed) int {
		return cmp.Or(cmp.Compare(a.expiresAt, b.expiresAt), cmp.Compare(a.id, b.id), strings.Compare(a.recipient, b.recipient))
	})
	for _, o := range over {
		a.told = append(a.told, m.bury(o, id, now, "expired", "ttl_expired", ""))
		if o.request && o.from != "signalbox" {
			a.sent++
		}
	}
	return a
}

func (m *model) subscribe(agent string, topics []string, now int64) (a answer) {
	for _, o := range m.list {
		if rest, ok := strings.CutPrefix(o.recipient, "topic:"); ok && o.isOpen() && o.expiresAt > now && slices.Contains(topics, rest) {
			o.recipient, a.woken = agent, []string{agent}
		}
	}
	return a
}

func (m *model) closeRole(role string, id, now int64) (a answer) {
	for _, o := range m.list {
		if o.isOpen() && o.recipient == "role:"+role {
			a.told = append(a.told, m.bury(o, id, now, "dead_letter", "scope_closed", ""))
		}
	}
	slices.Sort(a.told)
	return a
}

// nextDue is in how many milliseconds something in flight can be fetched, 0 for
// never.
func (m *model) nextDue(agent string, who []string, now int64, f fetchOptions) (in int64) {
	for _, o := range m.mine(who) {
		if o.isOpen() && o.expiresAt > now && o.fetchedBy == agent && (len(f.topics) == 0 || slices.Contains(f.topics, o.topic)) {
			if d := o.fetchedAt + f.redeliverMS - now; in == 0 || d < in {
				in = d
			}
		}
	}
	return in
}

// rows are the deliveries as the table must have them.
func (m *model) rows() []string {
	byKey := map[string]string{}
	for _, o := range m.list {
		name := ""
		if o.foundByMessageID {
			name = o.messageID
		}
		acked := int64(0)
		if o.outcome == "acked" {
			acked = o.outcomeAt
		}
		byKey[fmt.Sprintf("%09d %s", o.id, o.recipient)] = fmt.Sprint(o.topic, o.priority, o.queuedAt, o.expiresAt, o.attempts, name, o.fetchedAt, o.fetchedID,
			o.fetchedBy, o.outcome, o.outcomeAt, o.outcomeID, acked, o.redrivenID, o.reason)
	}
	var rows []string
	for _, k := range slices.Sorted(maps.Keys(byKey)) {
		rows = append(rows, k+" "+byKey[k])
	}
	return rows
}
