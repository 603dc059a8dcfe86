package bridge

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"signalbox/wire"
)

// Part is a part of the bridge that can be red. The runbook has a paragraph
// for each.
type Part string

// The parts of the bridge's health.
const (
	PartStart     Part = "start"     // the first check has not passed
	PartNATS      Part = "nats"      // no connection
	PartCheck     Part = "check"     // log and register cannot be compared
	PartRegister  Part = "register"  // SQLite does not take rows
	PartLag       Part = "lag"       // more than 2 s or 50,000 messages behind
	PartDisk      Part = "disk"      // too little free space
	PartRetention Part = "retention" // the stream will drop what is not registered yet
	PartWAL       Part = "wal"       // a reader keeps the write-ahead log from starting over
	PartFrozen    Part = "frozen"    // a stream met a full disk and waits for a restart of its server
)

// Health says which parts of the bridge are red, and why.
type Health struct {
	mu      sync.Mutex // guards what follows
	reasons map[Part]string
	since   map[Part]time.Time
}

func newHealth() *Health {
	h := &Health{reasons: map[Part]string{}, since: map[Part]time.Time{}}
	h.red(PartStart, "the log has not been checked against the register yet")
	return h
}

func (h *Health) red(p Part, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.reasons[p]; !ok {
		h.since[p] = time.Now()
	}
	h.reasons[p] = reason
}

func (h *Health) green(p Part) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.reasons, p)
	delete(h.since, p)
}

// set is red with a reason, green with "".
func (h *Health) set(p Part, reason string) {
	if reason == "" {
		h.green(p)
	} else {
		h.red(p, reason)
	}
}

// Red are the parts that are red, with the reasons.
func (h *Health) Red() map[Part]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.reasons)
}

// lag is how far the fold is behind the log.
type lag struct {
	messages int64
	time     time.Duration
}

func (l lag) reason() string {
	switch {
	case l.messages > lagMessages:
		return fmt.Sprintf("the register is %d messages behind the log", l.messages)
	case l.time > lagTime:
		return fmt.Sprintf("the register is %s behind the log", l.time.Round(time.Millisecond))
	}
	return ""
}

func (h *Health) lag(l lag) { h.set(PartLag, l.reason()) }

// admits says whether a request may be taken; the error is a *wire.Error.
func (h *Health) admits() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range []struct {
		part Part
		code wire.Code
		hint string
	}{
		{PartDisk, wire.DiskLow, "free some space on the bridge's disk"},
		{PartFrozen, wire.DiskLow, "free some space on the bridge's disk"},
		{PartLag, wire.Lagging, "try again in a moment; plain publishes are captured meanwhile"},
		{PartRegister, wire.NotReady, "see the bridge's health"},
	} {
		if reason, ok := h.reasons[c.part]; ok {
			return wire.Errorf(c.code, "%s", reason).WithHint(c.hint)
		}
	}
	return nil
}
