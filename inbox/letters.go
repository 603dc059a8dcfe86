package inbox

import (
	"database/sql"
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

// bury makes an open delivery a dead letter, and says what the sender hears.
func (m *Machine) bury(db step.DB, in step.Input, d Delivery, msg step.Message, outcome, reason, lastError string) (step.Happened, error) {
	d, l, told := d.buried(in, msg, outcome, reason, lastError)
	if err := keepClosed(db, d); err != nil {
		return told, err
	}
	// A letter of the same row from before a redrive was taken away; the newest
	// is right in any case.
	_, err := db.Exec(`INSERT OR REPLACE INTO dead_letters (recipient, id, message_id, reason, failed_at_ms, last_error, cause)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, l.Recipient, l.ID, l.MessageID, l.Reason, l.FailedAtMS, l.LastError, l.Cause)
	if err != nil {
		return told, fmt.Errorf("bury row %d for %q: %w", d.ID, d.Recipient, err)
	}
	m.sums.Dead++
	return told, nil
}

const letterColumns = `recipient, id, message_id, reason, failed_at_ms, last_error, cause`

func scanLetter(rows *sql.Rows) (l letter, err error) {
	err = rows.Scan(&l.Recipient, &l.ID, &l.MessageID, &l.Reason, &l.FailedAtMS, &l.LastError, &l.Cause)
	return l, err
}

// lettersOf are the dead letters of a message, of one recipient where it is
// not "", at most so many.
func lettersOf(db step.DB, n named, recipient string, most int) ([]letter, error) {
	query, key := `SELECT `+letterColumns+` FROM dead_letters WHERE id = ?1 AND (?2 = '' OR recipient = ?2)
		ORDER BY recipient LIMIT ?3`, any(n.id)
	if n.messageID != "" {
		query, key = `SELECT `+letterColumns+` FROM dead_letters WHERE message_id = ?1 AND (?2 = '' OR recipient = ?2)
			ORDER BY recipient, id LIMIT ?3`, n.messageID
	}
	list, err := collect(db, scanLetter, query, key, recipient, most)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	return list, nil
}

// undeliverable is the message to the sender of a request or a handoff that
// expired, nil for others. The bridge itself needs none.
func undeliverable(m step.Message, d *Delivery, reason string) []step.Outgoing {
	if m.From == wire.Bridge || m.Envelope.Type != wire.TypeRequest && m.Envelope.Type != wire.TypeHandoff {
		return nil
	}
	return []step.Outgoing{{
		To: wire.Recipient{Class: wire.ToAgent, Name: m.From}, Type: wire.TypeSystem, Topic: "handoff.dead_letter",
		Priority: wire.UrgentPriority, CorrelationID: m.CorrelationID, TraceID: m.TraceID,
		Body: map[string]any{"message_id": m.MessageID, "id": d.ID, "recipient": d.Recipient, "reason": reason, "attempts": d.Attempts},
	}}
}
