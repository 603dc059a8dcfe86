package audit

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"time"
	"unicode/utf8"

	"signalbox/wire"
)

// Row is one message in the register. Rows never change.
type Row struct {
	ID            int64 // 1, 2, 3 …, given by the writer
	Incarnation   int64
	Seq           uint64
	AtNS          int64 // the log's time, nanoseconds since 1970
	Kind          wire.Kind
	Subject       string
	MessageID     string
	Type          wire.Type
	From          string
	To            string // as in message.send; "" for none
	Verified      bool   // the server vouches for From
	Topic         string
	Priority      int
	ExpiresAtMS   int64 // 0 for what does not expire
	CorrelationID string
	TraceID       string
	Header        wire.Header
	Body          []byte
	Leaf          [32]byte
}

// At is the log's time of the row.
func (r *Row) At() time.Time { return time.Unix(0, r.AtNS).UTC() }

// Identity says whether the sender was verified by the server or only claimed.
func (r *Row) Identity() string {
	if r.Verified {
		return "verified"
	}
	return "claimed"
}

// rowJSON is the row as the API and the command line print it.
type rowJSON struct {
	ID            int64       `json:"id"`
	Incarnation   int64       `json:"incarnation"`
	Seq           uint64      `json:"seq"`
	At            string      `json:"at"`
	Kind          wire.Kind   `json:"kind"`
	Subject       string      `json:"subject"`
	MessageID     string      `json:"message_id"`
	Type          wire.Type   `json:"type"`
	From          *string     `json:"from"`
	To            *string     `json:"to"`
	Identity      string      `json:"identity"`
	Topic         *string     `json:"topic"`
	Priority      int         `json:"priority"`
	ExpiresAtMS   *int64      `json:"expires_at_ms"`
	CorrelationID string      `json:"correlation_id"`
	TraceID       string      `json:"trace_id"`
	Headers       wire.Header `json:"headers"`
	Body          any         `json:"body,omitempty"` // a string, or an outline
	BodyBase64    *string     `json:"body_base64,omitempty"`
	Leaf          string      `json:"leaf,omitempty"`
}

// MarshalJSON writes the row's fields, without its leaf.
func (r *Row) MarshalJSON() ([]byte, error) { return json.Marshal(r.fields()) }

// WithLeaf writes the row's fields and its leaf in hex.
func (r *Row) WithLeaf() ([]byte, error) {
	f := r.fields()
	f.Leaf = hex.EncodeToString(r.Leaf[:])
	return json.Marshal(f)
}

// Outline writes the row's fields with {id, bytes} in place of the body, for
// where the body is too large.
func (r *Row) Outline() ([]byte, error) {
	f := r.fields()
	f.BodyBase64 = nil
	f.Body = map[string]int64{"id": r.ID, "bytes": int64(len(r.Body))}
	return json.Marshal(f)
}

func (r *Row) fields() rowJSON {
	f := rowJSON{
		ID: r.ID, Incarnation: r.Incarnation, Seq: r.Seq, At: r.At().Format("2006-01-02T15:04:05.000000000Z"),
		Kind: r.Kind, Subject: r.Subject, MessageID: r.MessageID, Type: r.Type,
		From: orNull(r.From), To: orNull(r.To), Identity: r.Identity(), Topic: orNull(r.Topic),
		Priority: r.Priority, CorrelationID: r.CorrelationID, TraceID: r.TraceID, Headers: r.Header,
	}
	if f.Headers == nil {
		f.Headers = wire.Header{}
	}
	if r.ExpiresAtMS != 0 {
		f.ExpiresAtMS = &r.ExpiresAtMS
	}
	if utf8.Valid(r.Body) {
		f.Body = string(r.Body)
	} else {
		s := base64.StdEncoding.EncodeToString(r.Body)
		f.BodyBase64 = &s
	}
	return f
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// asText reports whether a body is kept as TEXT. One with a NUL is valid UTF-8,
// but SQL functions and the sqlite3 shell stop at it, so it is kept as a BLOB.
func asText(body []byte) bool {
	return utf8.Valid(body) && bytes.IndexByte(body, 0) < 0
}
