package bridge

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"signalbox/audit"
	"signalbox/step"
	"signalbox/wire"
)

// Why is the chain of what happened to one thing: each change with the message
// that caused it, its sender, and what it led to.
type Why struct {
	Key   string    `json:"key"`   // as it was asked for
	State string    `json:"state"` // after the last change
	Steps []WhyStep `json:"steps"` // oldest first
	More  bool      `json:"more"`  // there are later changes; ask again after the last step's id
}

// WhyStep is one message and what it did.
type WhyStep struct {
	ID      int64       `json:"id"` // the register row of the cause
	At      time.Time   `json:"at"`
	From    string      `json:"from"`
	Subject string      `json:"subject"`
	Refusal *wire.Error `json:"refusal,omitempty"`
	Changes []WhyChange `json:"changes"` // of the thing; none where it only led to messages
	LedTo   []WhyEffect `json:"led_to"`
}

// WhyChange is a change of the state.
type WhyChange struct {
	From   string `json:"from_state"` // "" when it was new
	To     string `json:"to_state"`
	Reason string `json:"reason"`
}

// WhyEffect is a message or an event of the bridge.
type WhyEffect struct {
	ID      int64     `json:"id"` // its own row
	Kind    wire.Kind `json:"kind"`
	Subject string    `json:"subject"`
	To      string    `json:"to,omitempty"`
	Topic   string    `json:"topic,omitempty"`
	Type    wire.Type `json:"type,omitempty"`
}

// maxChanges are the changes that one look gives.
const maxChanges = 200

// whyKinds are the machines whose things have a history, by the word for one.
var whyKinds = map[string]string{"job": "assign", "role": "roles", "agent": "agents", "human": "humans"}

// ReadWhy explains a thing: job:ID, agent:ID, role:P/K[/S] or human:ID. after is
// the last step's id of the look before, 0 for the beginning. Errors:
// audit.ErrNotFound, or a *wire.Error with BODY_INVALID for a key that is none.
func ReadWhy(ctx context.Context, r *audit.Reader, key string, after int64) (Why, error) {
	kind, id, _ := strings.Cut(key, ":")
	machine := whyKinds[kind]
	if machine == "" || id == "" {
		return Why{}, wire.Errorf(wire.BodyInvalid, "%.200q is no key", key).WithHint("write job:ID, agent:ID, role:PROJECT/KIND[/SCOPE] or human:ID")
	}
	if machine == "roles" {
		if strings.Count(id, "/") == 1 {
			id += "/" + wire.NoScope
		}
		id = strings.ReplaceAll(id, "/", ".")
	}
	w := Why{Key: key, Steps: []WhyStep{}}
	from := int64(0)
	for !w.More {
		list, err := r.TransitionsOf(ctx, machine, id, from, audit.MaxLimit)
		if err != nil {
			return w, err
		}
		for _, t := range list {
			if from, w.State = t.ID, t.To; t.Cause <= after {
				continue
			}
			if w.More = len(w.Steps) >= maxChanges && w.Steps[len(w.Steps)-1].ID != t.Cause; w.More {
				break
			}
			w.add(t)
		}
		if len(list) < audit.MaxLimit {
			break
		}
	}
	if w.State == "" {
		return w, errors.Join(audit.ErrNotFound, wire.Errorf(wire.NotFound, "nothing is known of %.200q", key))
	}
	for i := range w.Steps {
		if err := w.Steps[i].look(ctx, r); err != nil {
			return w, err
		}
	}
	if err := w.strays(ctx, r, after); err != nil {
		return w, err
	}
	slices.SortFunc(w.Steps, func(a, b WhyStep) int { return int(a.ID - b.ID) })
	return w, nil
}

// add puts a transition to the step of its cause.
func (w *Why) add(t audit.Transition) {
	change := WhyChange{t.From, t.To, t.Reason}
	if n := len(w.Steps); n > 0 && w.Steps[n-1].ID == t.Cause {
		w.Steps[n-1].Changes = append(w.Steps[n-1].Changes, change)
		return
	}
	w.Steps = append(w.Steps, WhyStep{ID: t.Cause, Changes: []WhyChange{change}})
}

// look reads the row of a step, and what the bridge published because of it.
func (s *WhyStep) look(ctx context.Context, r *audit.Reader) error {
	row, err := r.Row(ctx, s.ID)
	if err != nil {
		return err
	}
	s.At, s.From, s.Subject, s.LedTo = row.At(), row.From, row.Subject, []WhyEffect{}
	refusal, err := r.Refusal(ctx, s.ID)
	switch {
	case err == nil:
		s.Refusal = &refusal.Error
	case !errors.Is(err, audit.ErrNotFound):
		return err
	}
	after := row.ID
	page, err := r.Log(ctx, audit.Filter{Cause: step.Place{Incarnation: row.Incarnation, Seq: row.Seq}.String(), After: &after, Limit: audit.MaxLimit})
	for _, e := range page.Rows {
		s.LedTo = append(s.LedTo, WhyEffect{ID: e.ID, Kind: e.Kind, Subject: e.Subject, To: e.To, Topic: e.Topic, Type: e.Type})
	}
	return err
}

// strays adds the messages that changed nothing and still led to something in
// the thing's chain: a report that came too late, say.
func (w *Why) strays(ctx context.Context, r *audit.Reader, after int64) error {
	chain := ""
	known := map[int64]bool{}
	for _, s := range w.Steps {
		known[s.ID] = true
		for _, e := range s.LedTo {
			if e.Kind == wire.Evt && chain == "" {
				row, err := r.Row(ctx, e.ID)
				if err != nil {
					return err
				}
				chain = row.Header.First(wire.HeaderCorrelationID)
			}
		}
	}
	if chain == "" || w.More {
		return nil
	}
	page, err := r.Log(ctx, audit.Filter{Correlation: chain, From: wire.Bridge, After: &after, Limit: audit.MaxLimit})
	if err != nil {
		return err
	}
	for _, row := range page.Rows {
		place, ok := step.ParsePlace(row.Header.First(wire.HeaderCause))
		if !ok {
			continue
		}
		cause, err := r.RowAtPlace(ctx, place.Incarnation, place.Seq)
		if err != nil {
			return err
		}
		id := cause.ID
		if known[id] || id <= after {
			continue
		}
		known[id] = true
		s := WhyStep{ID: id, Changes: []WhyChange{}}
		if err := s.look(ctx, r); err != nil {
			return err
		}
		w.Steps = append(w.Steps, s)
	}
	return nil
}
