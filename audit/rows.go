package audit

import (
	"database/sql"
	"encoding/json"
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// Rows reads the register for machines, within a step or a read-only look.
type Rows struct{}

// flush makes rows readable that the open batch has appended.
func (Rows) flush(db step.DB) error {
	if batch, ok := db.(interface{ Flush() error }); ok {
		return batch.Flush()
	}
	return nil
}

func (r Rows) row(db step.DB, id int64) (*Row, error) {
	if err := r.flush(db); err != nil {
		return nil, err
	}
	row, err := scanRow(db.QueryRow(`SELECT `+rowColumns+` FROM messages WHERE id = ?`, id).Scan)
	if err != nil {
		return nil, notFound(err, "row %d", id)
	}
	return row, nil
}

// MessageID is the message id of a row; ErrNotFound where there is none.
func (r Rows) MessageID(db step.DB, id int64) (messageID string, err error) {
	if err := r.flush(db); err != nil {
		return "", err
	}
	if err := db.QueryRow(`SELECT message_id FROM messages WHERE id = ?`, id).Scan(&messageID); err != nil {
		return "", notFound(err, "row %d", id)
	}
	return messageID, nil
}

// messageColumns are what machines see of a row. The body, nearly all of a
// row, is not among them.
const messageColumns = `id, message_id, "from", "to", topic, expires_at_ms, correlation_id, trace_id, headers, headers_raw, leaf`

// Message is a row as machines see messages; ErrNotFound where there is none.
// It does not read the body.
func (r Rows) Message(db step.DB, id int64) (step.Message, error) {
	if err := r.flush(db); err != nil {
		return step.Message{}, err
	}
	var (
		m               step.Message
		from, to, topic sql.NullString
		expires         sql.NullInt64
		headers         string
		headersRaw      []byte
	)
	err := db.QueryRow(`SELECT `+messageColumns+` FROM messages WHERE id = ?`, id).
		Scan(&m.ID, &m.MessageID, &from, &to, &topic, &expires, &m.CorrelationID, &m.TraceID, &headers, &headersRaw, &m.Leaf)
	if err != nil {
		return step.Message{}, notFound(err, "row %d", id)
	}
	header, err := decodeHeader(headers, headersRaw)
	if err != nil {
		return step.Message{}, fmt.Errorf("row %d: %w", id, err)
	}
	// What was wrong with its headers was said when it was folded.
	m.Envelope, _ = wire.ReadEnvelope(header)
	m.Envelope.Topic = topic.String
	m.To, _ = wire.ParseRecipient(to.String)
	m.From, m.ExpiresAtMS = from.String, expires.Int64
	return m, nil
}

// JSON is a row as the API prints it; with {id, bytes} in place of the body
// where it would have more than most bytes.
func (r Rows) JSON(db step.DB, id int64, most int) (json.RawMessage, error) {
	row, err := r.row(db, id)
	if err != nil {
		return nil, err
	}
	if len(row.Body) <= most {
		raw, err := row.MarshalJSON()
		if err != nil || len(raw) <= most {
			return raw, err
		}
	}
	return row.Outline()
}
