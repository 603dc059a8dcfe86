package inbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"signalbox/step"
	"signalbox/wire"
)

// Bounds of a command that names messages.
const (
	MaxIDs      = 1000   // of one ack
	mostFresh   = 1000   // deliveries not fetched that are compared with a message id
	mostAtOnce  = 10_000 // deliveries that one command settles
	maxExactInt = 1 << 53
)

// named is how a command names a message: by its register row, or by its
// message id.
type named struct {
	id        int64 // 0 for none
	messageID string
}

// readNamed reads a number or a text. The refusal names the field.
func readNamed(field string, raw json.RawMessage) (named, *wire.Error) {
	wrong := wire.Errorf(wire.BodyInvalid, "%s must be a message id (a text) or the number of a register row", field)
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return named{}, wire.Errorf(wire.BodyInvalid, "%s is missing", field)
	case raw[0] == '"':
		var n named
		if json.Unmarshal(raw, &n.messageID) != nil || n.messageID == "" {
			return named{}, wrong
		}
		return n, nil
	}
	if id, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return named{id: id}, nil
	}
	// A client without whole numbers may write 3 as 3.0 or 3e0.
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= maxExactInt {
		return named{}, wrong
	}
	return named{id: int64(f)}, nil
}

// whose is a list of recipients, as statements take it too.
type whose struct {
	recipients []string
	text       string // a JSON array
}

func (m *Machine) whose(db step.DB, agent string) (whose, error) {
	list, err := m.recipients(db, agent)
	if err != nil {
		return whose{}, err
	}
	text, err := json.Marshal(list)
	return whose{list, string(text)}, err
}

// openByRow are the open deliveries of a register row, fetched or not.
func openByRow(db step.DB, w whose, id int64) ([]Delivery, error) {
	list, err := collect(db, scanRows, `SELECT `+columns+` FROM deliveries
		WHERE id = ? AND recipient IN (SELECT value FROM json_each(?)) AND outcome IS NULL ORDER BY recipient`, id, w.text)
	if err != nil {
		return nil, fmt.Errorf("read the open deliveries of row %d: %w", id, err)
	}
	return list, nil
}

// inFlight are the deliveries with a message id that are fetched and open, at
// most so many.
func inFlight(db step.DB, w whose, messageID string, most int) ([]Delivery, error) {
	list, err := collect(db, scanRows, `SELECT `+columns+` FROM deliveries INDEXED BY deliveries_message
		WHERE recipient IN (SELECT value FROM json_each(?)) AND message_id = ? AND outcome IS NULL AND delivered_at_ms IS NOT NULL
		ORDER BY id, recipient LIMIT ?`, w.text, messageID, most)
	if err != nil {
		return nil, fmt.Errorf("read what is in flight of message %q: %w", messageID, err)
	}
	return list, nil
}

// notFetched finds message ids among the first deliveries that were not
// fetched: an agent may have read a message from its subject. Each id found is
// taken out of wanted; the search ends with the last.
func (m *Machine) notFetched(db step.DB, w whose, wanted map[string]bool) (found []Delivery, err error) {
	left := mostFresh
	for _, recipient := range w.recipients {
		if len(wanted) == 0 || left == 0 {
			break
		}
		list, err := m.firstFresh(db, recipient, left)
		if err != nil {
			return nil, err
		}
		left -= len(list)
		for _, d := range list {
			messageID, err := m.facts.Rows.MessageID(db, d.ID)
			if err != nil {
				return nil, fmt.Errorf("row %d for %q: %w", d.ID, recipient, err)
			}
			if !wanted[messageID] {
				continue
			}
			found = append(found, d)
			if delete(wanted, messageID); len(wanted) == 0 {
				break
			}
		}
	}
	return found, nil
}
