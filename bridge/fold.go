package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"signalbox/audit"
	"signalbox/step"
	"signalbox/wire"
)

// keepOutcomes is how long, in bus time, a request id keeps its first outcome.
const keepOutcomes = 24 * time.Hour

// folder folds one message into an open batch. It is the whole of what the log
// does to the register; nothing in it depends on where a batch begins or ends.
type folder struct {
	config   *Config
	machines machines
	log      *slog.Logger

	// What the last text of settings said: it changes with a start only, and
	// reading it for every message took two fifths of the loop's time.
	settingsText string
	settings     step.Settings

	// Every step in a savepoint of its own, since one of the batch fails.
	careful bool

	run stepRun // of the message that is folded; one at a time
}

// answer is what the sender of a request is told after the commit.
type answer struct {
	waitKey
	status int // 0 done
	body   []byte
	row    *audit.Row
}

// folded is what a batch owes the world once it is committed.
type folded struct {
	answers  []answer
	refusals []wire.Code
	faults   int      // INTERNAL
	stepped  bool     // some machine acted, so deadlines may have moved
	ticked   bool     // the tick in flight has arrived
	stuck    []dueKey // deadlines that failed
	requests []outRequest
	woken    []pollKey
}

// fold registers one message and does what it causes. An error is of the
// register and undoes the batch; what a machine does wrong is recorded.
func (f *folder) fold(b *audit.Batch, it *item, out *folded) error {
	stepped, before := false, b.State.BusNS
	if !it.log.tap {
		b.State.BusNS, stepped = advance(b.State.BusNS, b.State.LogNS, it.row.AtNS)
		b.State.LogNS = it.row.AtNS
	}
	s := f.step(b, it, out)
	s.beforeMS = before / int64(time.Millisecond)
	if it.opens != nil {
		if err := b.OpenIncarnation(*it.opens); err != nil {
			return err
		}
	}
	for i := range it.gaps {
		it.gaps[i].AtMS = s.in.NowMS
		if err := b.Gap(it.gaps[i]); err != nil {
			return err
		}
	}
	if err := b.Append(it.row); err != nil {
		return err
	}
	s.in.ID = it.row.ID
	if err := s.announceLog(stepped); err != nil {
		return err
	}
	if len(it.gaps) > 0 && !it.log.tap {
		if err := s.fence(); err != nil {
			return err
		}
	}
	switch it.row.Kind {
	case wire.Evt:
		return s.cameBack()
	case wire.Msg, wire.Cmd:
		if it.row.From != wire.Bridge {
			return s.attended()
		}
		if err := s.cameBack(); err != nil {
			return err
		}
		_, err := s.judge()
		return err
	}
	return nil
}

// What machines hear of each message; the sender is the input's. They are made
// once: a message has no need of values of its own.
var (
	arrived step.Event = step.Notice{Machine: bridgeName, What: step.Arrived}
	handled step.Event = step.Notice{Machine: bridgeName, What: step.Handled}
)

// attended judges what a sender other than the bridge sent. Before, what is
// over for the sender ends, so that a late holder acts for nothing; after, the
// message is a sign of its life, even one that was refused.
func (s *stepRun) attended() error {
	for _, m := range s.machines.arrived {
		if _, _, err := s.attempt(m, arrived); err != nil {
			return err
		}
	}
	refusal, err := s.judge()
	if err != nil {
		return err
	}
	event := handled
	if refusal != nil {
		event = step.Notice{Machine: bridgeName, What: step.Handled, Data: refusal}
	}
	for _, m := range s.machines.handled {
		if _, _, err := s.attempt(m, event); err != nil {
			return err
		}
	}
	return nil
}

// fence tells the machines that commands may be missing.
func (s *stepRun) fence() error {
	for _, g := range s.it.gaps {
		gap := step.Gap{}
		if g.To >= g.From && g.To != 0 {
			gap.Missing = int64(g.To - g.From + 1)
		}
		if err := s.hear(step.Notice{What: step.LogGap, Key: g.Stream, Data: gap}); err != nil {
			return err
		}
	}
	return nil
}

// step starts the handling of one message.
func (f *folder) step(b *audit.Batch, it *item, out *folded) *stepRun {
	f.run = stepRun{
		folder: f, batch: b, it: it, out: out, db: stepDB{batch: b},
		in: step.Input{
			Place: step.Place{Incarnation: it.row.Incarnation, Seq: it.row.Seq},
			At:    it.row.At(), NowMS: b.State.BusNS / int64(time.Millisecond), From: it.row.From,
			Settings: f.readSettings(b.State.Settings),
		},
	}
	return &f.run
}

// readSettings reads what a bridge.started left; it was JSON when it was kept.
func (f *folder) readSettings(text string) step.Settings {
	if text != f.settingsText {
		f.settingsText, f.settings = text, nil
		if err := json.Unmarshal([]byte(text), &f.settings); err != nil {
			f.log.Error("the settings kept in the register cannot be read", "err", err)
		}
	}
	return f.settings
}

// judge decides a command or a message: once for each request id, and then
// always with the same answer.
func (s *stepRun) judge() (*wire.Error, error) {
	it := s.it
	id := it.requestID
	key := keyOf(it.row.From, id, it.row.Subject, it.row.Header, it.row.Body)
	if key.kept() {
		first, ok, err := s.batch.Outcome(it.row.From, id, s.in.NowMS-keepOutcomes.Milliseconds())
		if err != nil {
			return nil, err
		}
		if ok {
			return s.repeated(first, key)
		}
	}
	reply, refusal, err := s.decide()
	if err != nil {
		return nil, err
	}
	a := answer{waitKey: key, row: it.row}
	switch {
	case refusal != nil:
		a.status, a.body = refusal.Code.Status(), refusal.Body()
		err = s.refuse(refusal)
	case id != "":
		if a.body, err = json.Marshal(reply); err != nil {
			return nil, err
		}
	}
	if err != nil || id == "" {
		return refusal, err
	}
	s.out.answers = append(s.out.answers, a)
	if !key.kept() {
		return refusal, nil
	}
	return refusal, s.batch.Remember(audit.Outcome{From: key.from, ID: id, BodyHash: key.hash[:], Status: a.status,
		Reply: a.body, Cause: it.row.ID, AtMS: s.in.NowMS})
}

// repeated answers a request whose id has an outcome, and gives the refusal that
// the answer is, if it is one.
func (s *stepRun) repeated(first audit.Outcome, key waitKey) (refusal *wire.Error, err error) {
	a := answer{waitKey: key, row: s.it.row, status: first.Status, body: first.Reply}
	if !bytes.Equal(key.hash[:], first.BodyHash) {
		refusal = wire.Errorf(wire.Conflict, "request id %q was used by row %d with another content", first.ID, first.Cause).
			WithHint("give every request an id of its own; repeat one only to ask for the same outcome again")
		a.status, a.body = refusal.Code.Status(), refusal.Body()
		if err := s.refuse(refusal); err != nil {
			return nil, err
		}
	} else if first.Status != 0 {
		var kept struct {
			Error *wire.Error `json:"error"`
		}
		if err := json.Unmarshal(first.Reply, &kept); err != nil {
			return nil, fmt.Errorf("the outcome of row %d: %w", first.Cause, err)
		}
		refusal = kept.Error
	}
	s.out.answers = append(s.out.answers, a)
	return refusal, nil
}

// refuse records a refusal. The sender of a request gets it as the reply; for a
// plain publish it becomes a dead letter and a notice.
func (s *stepRun) refuse(refusal *wire.Error) error {
	row := s.it.row
	s.out.refusals = append(s.out.refusals, refusal.Code)
	if err := s.batch.Refuse(row.ID, refusal); err != nil {
		return err
	}
	if s.it.requestID != "" {
		return nil
	}
	recipient := s.it.addr.Machine
	if row.Kind == wire.Msg {
		recipient = s.it.addr.To.Name
	}
	if err := s.batch.Bury(audit.DeadLetter{Recipient: recipient, ID: row.ID, Reason: "refused:" + string(refusal.Code),
		MessageID: row.MessageID, FailedAtMS: s.in.NowMS, LastError: refusal.Message, Cause: row.ID}); err != nil {
		return err
	}
	return s.happened(noticeName, step.Happened{Key: row.From, What: "refused", Body: map[string]any{
		"id": row.ID, "subject": row.Subject, "message_id": row.MessageID, "error": refusal,
	}, CorrelationID: row.CorrelationID, TraceID: row.TraceID})
}

// cameBack takes an entry off the outbox that has arrived in the log.
func (s *stepRun) cameBack() error {
	h := s.it.row.Header
	id := h.First(wire.HeaderOutboxID)
	if id == "" {
		id = h.First(wire.HeaderMsgID)
	}
	if id == "" {
		return nil
	}
	_, err := s.batch.CameBack(id, s.it.row.Subject, s.it.row.Body)
	return err
}

// asRefusal is the refusal in err, if that is what it is.
func asRefusal(err error) (*wire.Error, bool) {
	var refusal *wire.Error
	ok := errors.As(err, &refusal)
	return refusal, ok
}

// loud logs a fault of a machine; the loop goes on.
func (f *folder) loud(machine string, row *audit.Row, err error) {
	f.log.LogAttrs(context.Background(), slog.LevelError, "a machine failed; its step was undone",
		slog.String("machine", machine), slog.Int64("id", row.ID), slog.String("subject", row.Subject), slog.Any("err", err))
}
