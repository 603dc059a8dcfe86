package agents

import (
	"slices"
	"strings"

	"signalbox/step"
)

// unwritten says what of an entry the table has not.
type unwritten int

const (
	nothing unwritten = iota
	times             // last_seen_at_ms, lease_expires_at_ms and deadline_at_ms
	whole             // any column
)

// entry is an agent in memory.
type entry struct {
	agent     Agent
	damaged   error // why its row cannot be read; what could be read is in agent
	unwritten unwritten
}

// audience is who hears a topic. A slice that was handed out stays as it is:
// its part up to its length is never written to again.
type audience struct {
	inbox []string // ids, sorted
	live  int
}

// directory is all agents in memory, as the table will be after the next flush.
type directory struct {
	byID   map[string]*entry
	topics map[string]*audience
	dirty  []*entry
}

func newDirectory() *directory {
	return &directory{byID: map[string]*entry{}, topics: map[string]*audience{}}
}

// load takes an agent over from the table.
func (d *directory) load(a Agent, damaged error) {
	e := &entry{agent: a, damaged: damaged}
	d.byID[a.AgentID] = e
	if e.heard() {
		d.join(&e.agent)
	}
}

// heard reports whether the entry is in the index of topics.
func (e *entry) heard() bool { return e != nil && e.damaged == nil && e.agent.audible() }

// beat keeps a life in which nothing but times has moved, if anything.
func (d *directory) beat(e *entry, next Life) {
	if next == e.agent.Life {
		return
	}
	e.agent.Life = next
	d.mark(e, times)
}

// change keeps any other change. e is nil for an agent that is new.
func (d *directory) change(e *entry, next Agent) {
	was, old := e.heard(), Agent{}
	if e == nil {
		e = &entry{}
		d.byID[next.AgentID] = e
	} else {
		old = e.agent
	}
	e.agent, e.damaged = next, nil
	if was != e.heard() || old.Delivery != next.Delivery || !slices.Equal(old.Topics, next.Topics) {
		if was {
			d.leave(&old)
		}
		if e.heard() {
			d.join(&e.agent)
		}
	}
	d.mark(e, whole)
}

func (d *directory) mark(e *entry, w unwritten) {
	if e.unwritten == nothing {
		d.dirty = append(d.dirty, e)
	}
	e.unwritten = max(e.unwritten, w)
}

func (d *directory) join(a *Agent) {
	for _, topic := range a.Topics {
		who := d.topics[topic]
		if who == nil {
			who = &audience{}
			d.topics[topic] = who
		}
		if a.Delivery == Live {
			who.live++
			continue
		}
		if n := len(who.inbox); n == 0 || who.inbox[n-1] < a.AgentID {
			who.inbox = append(who.inbox, a.AgentID)
			continue
		}
		i, _ := slices.BinarySearch(who.inbox, a.AgentID)
		who.inbox = slices.Insert(slices.Clone(who.inbox), i, a.AgentID)
	}
}

func (d *directory) leave(a *Agent) {
	for _, topic := range a.Topics {
		who := d.topics[topic]
		if a.Delivery == Live {
			who.live--
		} else {
			i, _ := slices.BinarySearch(who.inbox, a.AgentID)
			who.inbox = slices.Delete(slices.Clone(who.inbox), i, i+1)
		}
		if who.live == 0 && len(who.inbox) == 0 {
			delete(d.topics, topic)
		}
	}
}

// flush writes what the table has not, in the order of the ids.
func (d *directory) flush(db step.DB) error {
	slices.SortFunc(d.dirty, func(a, b *entry) int { return strings.Compare(a.agent.AgentID, b.agent.AgentID) })
	for _, e := range d.dirty {
		write := writeTimes
		if e.unwritten == whole {
			write = writeAgent
		}
		if err := write(db, &e.agent); err != nil {
			return err
		}
	}
	for _, e := range d.dirty {
		e.unwritten = nothing
	}
	d.dirty = d.dirty[:0]
	return nil
}
