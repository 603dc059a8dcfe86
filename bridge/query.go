package bridge

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/micro"

	"signalbox/audit"
	"signalbox/step"
	"signalbox/wire"
)

// Bounds of queries.
const (
	queryWorkers = 4
	lookWorkers  = 2 // for polls that wait
	queryQueue   = 256
	queryTimeout = 20 * time.Second
)

// query is a question that a worker answers, off the callbacks.
type query struct {
	run func(context.Context)
}

// enqueue hands a query to the workers; false when their queue is full.
func (s *service) enqueue(q query) bool {
	select {
	case s.queries <- q:
		return true
	default:
		return false
	}
}

// work answers queries until ctx ends.
func (s *service) work(ctx context.Context) { answerAll(ctx, s.queries) }

func answerAll(ctx context.Context, queries <-chan query) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-queries:
			limited, cancel := context.WithTimeout(ctx, queryTimeout)
			q.run(limited)
			cancel()
		}
	}
}

// question answers one request from the register.
type question func(ctx context.Context, from string, body []byte) (any, error)

// ask makes the endpoint of a question.
func (s *service) ask(q question) micro.HandlerFunc {
	return func(r micro.Request) {
		addr, err := s.config.Root.Parse(r.Subject())
		if err != nil {
			s.refuse(r, err)
			return
		}
		run := func(ctx context.Context) {
			result, err := q(ctx, addr.From, r.Data())
			err = readError(err)
			if err != nil {
				s.refuse(r, err)
				return
			}
			s.respondJSON(r, result)
		}
		if !s.enqueue(query{run: run}) {
			s.refuse(r, wire.Errorf(wire.TooManyRequests, "%d queries wait already", queryQueue).WithHint("try again"))
		}
	}
}

// readError is what a caller is told of a question that failed.
func readError(err error) error {
	switch {
	case errors.Is(err, audit.ErrNotFound):
		return wire.Errorf(wire.NotFound, "%v", err)
	case errors.Is(err, audit.ErrFilter):
		return wire.Errorf(wire.BodyInvalid, "%v", err)
	case errors.Is(err, context.DeadlineExceeded):
		return wire.Errorf(wire.NotReady, "the query took longer than %s", queryTimeout).WithHint("narrow it with more filters")
	case errors.Is(err, context.Canceled):
		return wire.Errorf(wire.NotReady, "the bridge stops").WithHint("ask again when it is back")
	}
	return err
}

// machineQuery gives a machine's query a read-only view of one commit.
func (b *Bridge) machineQuery(q step.Query) question {
	return func(ctx context.Context, from string, body []byte) (result any, err error) {
		err = b.reader.View(ctx, func(tx *sql.Tx) error {
			result, err = q(tx, from, body)
			return err
		})
		return result, err
	}
}

// LogQuery is the body of audit.log: the filters of the command line.
type LogQuery struct {
	Trace       string    `json:"trace"`
	Correlation string    `json:"correlation"`
	From        string    `json:"from"`
	To          string    `json:"to"`
	Topic       string    `json:"topic"`
	Subject     string    `json:"subject"`
	Type        string    `json:"type"`
	Kind        kinds     `json:"kind"` // "msg,cmd" or ["msg","cmd"]
	ForAgent    string    `json:"for_agent"`
	Since       time.Time `json:"since"`
	Until       time.Time `json:"until"`
	Search      string    `json:"search"`
	After       *int64    `json:"after"`
	Limit       int       `json:"limit"`
}

type kinds []wire.Kind

// UnmarshalJSON reads a list, or a text with commas.
func (k *kinds) UnmarshalJSON(raw []byte) error {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		for name := range strings.SplitSeq(text, ",") {
			if name != "" {
				*k = append(*k, wire.Kind(strings.TrimSpace(name)))
			}
		}
		return nil
	}
	return json.Unmarshal(raw, (*[]wire.Kind)(k))
}

func (b *Bridge) auditQueries() map[string]question {
	return map[string]question{
		"log": b.queryLog, "get": b.queryGet, "body": b.queryBody, "trace": b.queryTrace, "stats": b.queryStats, "why": b.queryWhy,
	}
}

func (b *Bridge) queryLog(ctx context.Context, _ string, body []byte) (any, error) {
	var q LogQuery
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	for _, k := range q.Kind {
		if !slices.Contains([]wire.Kind{wire.Msg, wire.Cmd, wire.Evt, wire.Tap}, k) {
			return nil, wire.Errorf(wire.BodyInvalid, "kind %.50q is none of msg, cmd, evt and tap", k)
		}
	}
	page, err := b.reader.Log(ctx, audit.Filter{Trace: q.Trace, Correlation: q.Correlation, From: q.From, To: q.To, Topic: q.Topic,
		Subject: q.Subject, Type: wire.Type(q.Type), Kinds: q.Kind, ForAgent: q.ForAgent, Since: q.Since, Until: q.Until,
		Search: q.Search, After: q.After, Limit: q.Limit})
	if err != nil {
		return nil, err
	}
	rows, cut, err := b.fill(page.Rows, q.After == nil)
	if err != nil {
		return nil, err
	}
	next := page.NextAfter
	if cut && q.After != nil {
		next = page.Rows[len(rows)-1].ID
	}
	return struct {
		Rows      []json.RawMessage `json:"rows"`
		NextAfter int64             `json:"next_after"`
		Gaps      []audit.Gap       `json:"gaps"`
		More      bool              `json:"more"`
	}{rows, next, page.Gaps, page.More || cut}, nil
}

// room is how large a reply may be: three quarters of what the server carries.
func (b *Bridge) room() int { return int(b.nc.MaxPayload() / 4 * 3) }

// fill writes rows until the reply is full. It drops from the old end where the
// newest were asked for.
func (b *Bridge) fill(rows []*audit.Row, newest bool) (out []json.RawMessage, cut bool, err error) {
	out = make([]json.RawMessage, 0, len(rows))
	left := b.room()
	for i := range rows {
		row := rows[i]
		if newest {
			row = rows[len(rows)-1-i]
		}
		raw, err := row.MarshalJSON()
		if err != nil {
			return nil, false, err
		}
		if raw = b.fit(raw, row); len(raw) > left && i > 0 {
			cut = true
			break
		}
		left -= len(raw)
		out = append(out, raw)
	}
	if newest {
		for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
			out[i], out[j] = out[j], out[i]
		}
	}
	return out, cut, nil
}

// fit is a row's JSON where a reply can hold it, otherwise the row with the
// size of its body in place of the body, which audit.body then gives.
func (b *Bridge) fit(raw []byte, row *audit.Row) json.RawMessage { return b.fitIn(raw, row, b.room()) }

func (b *Bridge) fitIn(raw []byte, row *audit.Row, room int) json.RawMessage {
	if len(raw) <= room {
		return raw
	}
	outline, err := row.Outline()
	if err != nil {
		return raw
	}
	return outline
}

func (b *Bridge) queryTrace(ctx context.Context, _ string, body []byte) (any, error) {
	var q struct {
		ID    string `json:"id"`
		After int64  `json:"after"`
	}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	page, err := b.reader.Log(ctx, audit.Filter{Chain: q.ID, After: &q.After, Limit: audit.MaxLimit})
	if err != nil {
		return nil, err
	}
	if len(page.Rows) == 0 && q.After == 0 && !page.More {
		return nil, wire.Errorf(wire.NotFound, "no row has the trace, correlation or message id %.200q", q.ID)
	}
	rows, cut, err := b.fill(page.Rows, false)
	if err != nil {
		return nil, err
	}
	next := page.NextAfter
	if cut {
		next = page.Rows[len(rows)-1].ID
	}
	return map[string]any{"rows": rows, "next_after": next, "more": page.More || cut}, nil
}

// rowOf finds the row that {id} or {message_id} names.
func (b *Bridge) rowOf(ctx context.Context, id int64, messageID string) (*audit.Row, error) {
	if (id == 0) == (messageID == "") {
		return nil, wire.Errorf(wire.BodyInvalid, "give either id or message_id")
	}
	if id != 0 {
		return b.reader.Row(ctx, id)
	}
	rows, err := b.reader.ByMessageID(ctx, messageID)
	if err == nil && len(rows) == 0 {
		return nil, wire.Errorf(wire.NotFound, "no row has the message id %.200q", messageID)
	}
	if err != nil {
		return nil, err
	}
	return rows[0], nil
}

func (b *Bridge) queryGet(ctx context.Context, _ string, body []byte) (any, error) {
	var q struct {
		ID        int64  `json:"id"`
		MessageID string `json:"message_id"`
	}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	row, err := b.rowOf(ctx, q.ID, q.MessageID)
	if err != nil {
		return nil, err
	}
	fate, err := ReadFate(ctx, b.reader, row)
	if err != nil {
		return nil, err
	}
	raw, err := row.WithLeaf()
	if err != nil {
		return nil, err
	}
	became, err := json.Marshal(fate)
	if err != nil {
		return nil, err
	}
	fitted := b.fitIn(raw, row, b.room()-len(became))
	return struct {
		Row json.RawMessage `json:"row"`
		Fate
	}{fitted, fate}, nil
}

func (b *Bridge) queryBody(ctx context.Context, _ string, body []byte) (any, error) {
	var q struct {
		ID     int64 `json:"id"`
		Offset int64 `json:"offset"`
	}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	row, err := b.reader.Row(ctx, q.ID)
	if err != nil {
		return nil, err
	}
	size := int64(len(row.Body))
	if q.Offset < 0 || q.Offset > size {
		return nil, wire.Errorf(wire.BodyInvalid, "offset %d is outside a body of %d bytes", q.Offset, size)
	}
	part := row.Body[q.Offset:]
	if most := b.room() / 4 * 3; len(part) > most { // base64 takes a third more
		part = part[:most]
	}
	return map[string]any{"id": row.ID, "offset": q.Offset, "bytes": size,
		"body_base64": base64.StdEncoding.EncodeToString(part), "more": q.Offset+int64(len(part)) < size}, nil
}

func (b *Bridge) queryWhy(ctx context.Context, _ string, body []byte) (any, error) {
	var q struct {
		Key   string `json:"key"`
		After int64  `json:"after"`
	}
	if err := step.Decode(body, &q); err != nil {
		return nil, err
	}
	return ReadWhy(ctx, b.reader, q.Key, q.After)
}

func (b *Bridge) queryStats(ctx context.Context, _ string, body []byte) (any, error) {
	if err := step.Decode(body, &struct{}{}); err != nil {
		return nil, err
	}
	return ReadStats(ctx, b.reader)
}
