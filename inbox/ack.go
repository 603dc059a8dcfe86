package inbox

import (
	"encoding/json"

	"signalbox/step"
	"signalbox/wire"
)

// AckReply is the reply to ack.
type AckReply struct {
	Acked int `json:"acked"` // newly: what is unknown, of others or acked already counts 0
}

// ack settles deliveries of the sender, and of the roles that it holds.
func (m *Machine) ack(db step.DB, in step.Input, body []byte) (step.Effects, error) {
	names, err := readIDs(body)
	if err != nil {
		return step.Effects{}, err
	}
	w, err := m.whose(db, in.From)
	if err != nil {
		return step.Effects{}, err
	}
	if err := m.Flush(db); err != nil {
		return step.Effects{}, err
	}
	acked := 0
	settle := func(list []Delivery) error {
		for _, d := range list {
			if err := keepClosed(db, d.acked(in)); err != nil {
				return err
			}
			acked++
			m.sums.Acked++
		}
		return nil
	}
	elsewhere := map[string]bool{}
	for _, n := range names {
		var list []Delivery
		var err error
		if n.messageID == "" {
			list, err = openByRow(db, w, n.id)
		} else if list, err = inFlight(db, w, n.messageID, max(1, mostAtOnce-acked)); len(list) == 0 {
			elsewhere[n.messageID] = true
		}
		if err == nil {
			err = settle(list)
		}
		if err != nil {
			return step.Effects{}, err
		}
	}
	if len(elsewhere) > 0 {
		list, err := m.notFetched(db, w, elsewhere)
		if err == nil {
			err = settle(list)
		}
		if err != nil {
			return step.Effects{}, err
		}
	}
	return step.Effects{Reply: AckReply{Acked: acked}}, nil
}

// readIDs reads the body of an ack; each name is once in the result.
func readIDs(body []byte) ([]named, error) {
	var b struct {
		IDs []json.RawMessage `json:"ids"`
	}
	if err := step.Decode(body, &b); err != nil {
		return nil, err
	}
	switch {
	case b.IDs == nil:
		return nil, wire.Errorf(wire.BodyInvalid, "ids is missing").WithHint(`say what, as in {"ids":["<message_id>", 17]}`)
	case len(b.IDs) > MaxIDs:
		return nil, wire.Errorf(wire.BodyInvalid, "ids has %d ids, at most %d may be", len(b.IDs), MaxIDs)
	}
	names, known := make([]named, 0, len(b.IDs)), map[named]bool{}
	for _, raw := range b.IDs {
		n, refusal := readNamed("each of ids", raw)
		if refusal != nil {
			return nil, refusal
		}
		if !known[n] {
			known[n] = true
			names = append(names, n)
		}
	}
	return names, nil
}
