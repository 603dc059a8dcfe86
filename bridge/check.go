package bridge

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
)

// maxWalk is how many messages that a stream no longer has are passed over in
// search of one to compare.
const maxWalk = 256

// verdict is what a check found: where to read on, and what is to be recorded
// before the next row.
type verdict struct {
	incarnation int64
	from        uint64
	opens       *audit.Incarnation
	gaps        []audit.Gap
}

// evidence is what a check knows of a stream and can ask.
type evidence struct {
	streamID    string
	first, last uint64
	ours        bool // a stream that we made

	// same compares the stream's message with the register's row at the
	// greatest number at or below seq that both have; the number is 0 where
	// there is nothing to compare.
	same func(seq uint64) (at uint64, equal bool, err error)
}

// check compares a log with the register's cursor. next gives the number of a
// new incarnation.
//
// It is asked at the start, after each reconnect, whenever a reader has
// ended, and when idle; until it has passed, nothing received later is
// folded.
func check(c audit.Cursor, known bool, stream string, e evidence, next func() int64) (verdict, error) {
	start := max(e.first, 1)
	if !known {
		id := next()
		v := verdict{incarnation: id, from: start, opens: &audit.Incarnation{
			ID: id, Stream: stream, StreamID: e.streamID, FirstSeq: start, Reason: audit.Created}}
		if e.ours && start > 1 {
			v.gaps = []audit.Gap{{Stream: stream, Incarnation: id, From: 1, To: start - 1, Reason: audit.Overtaken}}
		}
		return v, nil
	}
	if e.streamID != c.StreamID {
		return anew(c, e, start, audit.StreamChanged, next), nil
	}
	if e.last >= c.Seq && start > c.Seq {
		v := verdict{incarnation: c.Incarnation, from: start}
		if start > c.Seq+1 {
			v.gaps = []audit.Gap{{Stream: stream, Incarnation: c.Incarnation, From: c.Seq + 1, To: start - 1, Reason: audit.Overtaken}}
		}
		return v, nil
	}
	if e.last >= c.Seq {
		at, equal, err := e.same(c.Seq)
		if err != nil || equal || at == 0 { // nothing speaks against it
			return verdict{incarnation: c.Incarnation, from: c.Seq + 1}, err
		}
	}
	fork, err := findFork(start, min(e.last, c.Seq), e.same)
	if err != nil {
		return verdict{}, err
	}
	return anew(c, e, fork, audit.LogWentBack, next), nil
}

// anew is the verdict of a log that another story begins in.
func anew(c audit.Cursor, e evidence, from uint64, reason string, next func() int64) verdict {
	id := next()
	return verdict{
		incarnation: id, from: from,
		opens: &audit.Incarnation{ID: id, Stream: c.Stream, StreamID: e.streamID, FirstSeq: from, Reason: reason},
		gaps:  []audit.Gap{{Stream: c.Stream, Incarnation: c.Incarnation, From: c.Seq + 1, Reason: reason}},
	}
}

// findFork is where another story may begin in [low, high]: just behind the
// last number at which stream and register are the same. What they share is a
// common beginning; between its last row and the first that differs, the
// register may have a gap that the new story fills.
func findFork(low, high uint64, same func(uint64) (uint64, bool, error)) (uint64, error) {
	fork := low
	for low <= high {
		mid := low + (high-low)/2
		at, equal, err := same(mid)
		switch {
		case err != nil:
			return 0, err
		case equal:
			fork = max(fork, at+1)
			low = mid + 1
		case at < low: // nothing at or below mid speaks against it
			low = mid + 1
		default:
			high = at - 1
		}
	}
	return fork, nil
}

// look gathers the evidence on a log.
func (l *logReader) look(ctx context.Context, js jetstream.JetStream, reg *audit.Register, adopt bool) (evidence, error) {
	stream, id, err := l.ensure(ctx, js, reg.State().RegisterID, adopt)
	if err != nil {
		return evidence{}, err
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return evidence{}, fmt.Errorf("stream %s: %w", l.name, err)
	}
	l.stream = stream
	e := evidence{streamID: id, first: info.State.FirstSeq, last: info.State.LastSeq, ours: l.config != nil}
	e.same = func(seq uint64) (uint64, bool, error) { return l.compare(ctx, js.Conn(), reg, seq) }
	return e, nil
}

// compare looks for the greatest number at or below seq that both the stream
// and the register have, and compares time, subject and body there.
func (l *logReader) compare(ctx context.Context, nc *nats.Conn, reg *audit.Register, seq uint64) (uint64, bool, error) {
	for range maxWalk {
		owner, ok, err := reg.Owner(l.cursor, seq)
		if err != nil || !ok {
			return 0, false, err
		}
		row, err := reg.RowAt(owner, seq)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
		msg, err := stored(ctx, nc, l.name, row.Seq, false)
		if errors.Is(err, errNoMessage) {
			if row.Seq == 0 {
				return 0, false, nil
			}
			seq = row.Seq - 1
			continue
		}
		if err != nil {
			return 0, false, err
		}
		equal := msg.subject == row.Subject && msg.at.UnixNano() == row.AtNS && bytes.Equal(msg.data, row.Body)
		return row.Seq, equal, nil
	}
	return 0, false, nil
}
