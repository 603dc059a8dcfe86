package audit_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"signalbox/audit"
	"signalbox/wire"
)

// textsDB remembers what it was asked.
type textsDB struct {
	*sql.DB
	texts []string
}

func (d *textsDB) QueryRow(query string, args ...any) *sql.Row {
	d.texts = append(d.texts, query)
	return d.DB.QueryRow(query, args...)
}

// A machine looks at many messages in a step; a body may have megabytes.
func TestAMessageIsReadForMachinesWithoutItsBody(t *testing.T) {
	l := newLedger(t)
	full := &audit.Row{Incarnation: 1, Seq: 1, AtNS: 1e18, Kind: wire.Msg, Subject: "bus.msg.me.agent.a", MessageID: "m", Type: wire.TypeRequest,
		From: "me", To: "agent:a", Topic: "x", Priority: 7, ExpiresAtMS: 1e12, CorrelationID: "c", TraceID: "t",
		Header: wire.Header{wire.HeaderPriority: {"7"}, wire.HeaderType: {"request"}, wire.HeaderTopic: {"x"}}, Body: []byte("hello")}
	odd := &audit.Row{Incarnation: 1, Seq: 2, AtNS: 1e18, Kind: wire.Msg, Subject: "s", MessageID: "n", Type: wire.TypeEvent, Priority: 5,
		CorrelationID: "c2", TraceID: "t2", Header: wire.Header{"Odd": {"\xff"}}, Body: []byte{0xff}}
	l.write([]*audit.Row{full, odd})
	raw, err := sql.Open("sqlite", l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	db := &textsDB{DB: raw}
	got, err := audit.Rows{}.Message(db, full.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != full.ID || got.MessageID != "m" || got.From != "me" || got.To.String() != "agent:a" || got.CorrelationID != "c" || got.TraceID != "t" ||
		got.ExpiresAtMS != 1e12 || string(got.Leaf) != string(full.Leaf[:]) || got.Problem != nil {
		t.Errorf("the message is %+v", got)
	}
	if e := got.Envelope; e.Type != wire.TypeRequest || e.Priority != 7 || e.Topic != "x" || e.TTL != wire.DefaultTTL {
		t.Errorf("its envelope is %+v", e)
	}
	if got, err := (audit.Rows{}).Message(db, odd.ID); err != nil || got.MessageID != "n" || got.From != "" || got.ExpiresAtMS != 0 || got.Envelope.Topic != "" {
		t.Errorf("a message with nothing is %+v, %v", got, err)
	}
	if _, err := (audit.Rows{}).Message(db, 99); !errors.Is(err, audit.ErrNotFound) {
		t.Errorf("no message: %v", err)
	}
	for _, text := range db.texts {
		if strings.Contains(text, "body") {
			t.Errorf("the body is read: %s", text)
		}
	}
}
