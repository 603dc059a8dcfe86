package audit

import (
	"database/sql"
	"fmt"

	"signalbox/wire"
)

// scanRow reads the rowColumns of a result.
func scanRow(scan func(...any) error) (*Row, error) {
	var (
		r               Row
		seq             int64
		from, to, topic sql.NullString
		expires         sql.NullInt64
		kind, typ       string
		identity        string
		headers         string
		headersRaw      []byte
		body            sql.NullString
		bodyRaw, leaf   []byte
	)
	err := scan(&r.ID, &r.Incarnation, &seq, &r.AtNS, &kind, &r.Subject, &r.MessageID, &typ, &from, &to, &identity, &topic,
		&r.Priority, &expires, &r.CorrelationID, &r.TraceID, &headers, &headersRaw, &body, &bodyRaw, &leaf)
	if err != nil {
		return nil, err
	}
	r.Seq, r.Kind, r.Type = uint64(seq), wire.Kind(kind), wire.Type(typ)
	r.From, r.To, r.Topic, r.ExpiresAtMS = from.String, to.String, topic.String, expires.Int64
	r.Verified = identity == "verified"
	if r.Header, err = decodeHeader(headers, headersRaw); err != nil {
		return nil, fmt.Errorf("row %d: %w", r.ID, err)
	}
	if r.Body = bodyRaw; body.Valid {
		r.Body = []byte(body.String)
	}
	if copy(r.Leaf[:], leaf) != len(r.Leaf) {
		return nil, fmt.Errorf("row %d: its leaf has %d bytes", r.ID, len(leaf))
	}
	return &r, nil
}
