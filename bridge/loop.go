package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"signalbox/audit"
	"signalbox/wire"
)

// Limits of a batch, and of what the loop waits for.
const (
	batchMessages = 1000
	batchBytes    = 4 << 20
	idleCheck     = 10 * time.Second
	tickLost      = 10 * time.Second // a tick that has not arrived by then is sent again
	startedWithin = 30 * time.Second // what a start tries to say for, before it fails
	stalledFrom   = 5 * time.Second  // a register that took no rows for so long is announced
	maxFetch      = 512 << 10        // bytes of messages that a fetch gives
	stuckRetry    = time.Minute      // deadlines that failed are tried again after this
)

// loop folds the logs into the register. One goroutine runs it; nothing else
// touches the register's writer.
type loop struct {
	*Bridge
	folder folder
	logs   []*logReader

	items    chan item
	troubles chan trouble
	status   chan nats.Status
	batch    []*item
	lastInc  int64
	opened   bool // bridge.started is in the log

	reconnects uint64 // of the connection, that have been dealt with
	apart      bool   // it was seen to be lost

	tick     *time.Timer
	idle     *time.Timer
	foldedAt time.Time            // of the last batch, on the monotonic clock
	notTick  time.Time            // no tick before
	stuck    map[dueKey]time.Time // deadlines that failed, and when to try again
	retryAt  time.Time            // the earliest of those; zero for none
	inFlight time.Time            // when the tick in flight was sent; zero for none
}

// open checks every log for the first time and starts to read it.
func (l *loop) open(ctx context.Context) error {
	cursors, err := l.reg.Cursors()
	if err != nil {
		return err
	}
	next, err := l.reg.NextIncarnation()
	if err != nil {
		return err
	}
	l.lastInc = next - 1
	if err := l.snapshotRules(); err != nil {
		return err
	}
	for _, spec := range l.config.logs() {
		r := &logReader{logSpec: spec}
		r.cursor, r.known = cursors[spec.name], cursors[spec.name].Stream != ""
		r.cursor.Stream = spec.name
		l.logs = append(l.logs, r)
		if _, err := r.look(ctx, l.js, l.reg, l.config.NewRegister); err != nil {
			return err
		}
		if err := l.check(ctx, r, true); err != nil {
			return err
		}
		for r == l.logs[0] && !r.again.IsZero() && ctx.Err() == nil {
			pause(ctx, time.Until(r.again))
			if err := l.check(ctx, r, true); err != nil {
				return err
			}
		}
	}
	l.reconnects = l.nc.Stats().Reconnects
	if err := ctx.Err(); err != nil {
		return err
	}
	l.opened = true
	return l.sayStarted(ctx)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// sayStarted appends the first command after a start of the bridge or of the
// embedded server, and waits until the log has it: rules know their settings
// from it alone.
func (l *loop) sayStarted(ctx context.Context) error {
	raw, err := json.Marshal(l.startedBody())
	if err != nil {
		return err
	}
	m := &nats.Msg{Subject: l.config.Root.Command(wire.Bridge, bridgeName, verbStarted), Data: raw,
		Header: nats.Header{wire.HeaderMsgID: {uuid.NewString()}}} // a lost PubAck must not double it
	retry := backoff.NewExponentialBackOff(backoff.WithMaxElapsedTime(startedWithin))
	return backoff.Retry(func() error {
		_, err := l.js.PublishMsg(ctx, m)
		return err
	}, backoff.WithContext(retry, ctx))
}

func (l *loop) startedBody() Started {
	settings := map[string]json.RawMessage{}
	maps.Copy(settings, l.config.Settings)
	if settings["inbox"] == nil { // what a fetch gives must fit into its reply
		settings["inbox"] = fmt.Appendf(nil, `{"reply_bytes":%d}`, min(maxFetch, l.room()))
	}
	return Started{Instance: l.config.Instance, Version: l.config.Version, RulesVersion: RulesVersion,
		Settings: settings, Embedded: l.config.Embedded}
}

// stop ends the readers and waits for them.
func (l *loop) stop() {
	for _, r := range l.logs {
		r.halt()
	}
}

// snapshotRules keeps the state tables as the rules of another version left
// them, before the first message is folded by today's.
func (l *loop) snapshotRules() error {
	if l.reg.State().RulesVersion == RulesVersion {
		return nil
	}
	b, err := l.reg.Begin()
	if err != nil {
		return err
	}
	b.State.RulesVersion = RulesVersion
	if err := b.Snapshot(RulesVersion, l.folder.machines.tables()); err != nil {
		return errors.Join(err, b.Rollback())
	}
	return b.Commit()
}

// run folds until ctx ends. The error is what it could not go on from.
func (l *loop) run(ctx context.Context) error {
	defer l.stop()
	l.tick, l.idle = time.NewTimer(time.Hour), time.NewTimer(idleCheck)
	defer l.tick.Stop()
	defer l.idle.Stop()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	rollup := time.NewTicker(l.config.Rollup)
	defer rollup.Stop()
	l.foldedAt = time.Now()
	l.notTick = l.foldedAt.Add(l.config.FirstTick)
	if err := l.armTick(false); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case it := <-l.items:
			if err := l.take(ctx, &it); err != nil {
				return err
			}
		case t := <-l.troubles:
			if err := l.recover(ctx, t); err != nil {
				return err
			}
		case <-l.status:
			if err := l.connection(ctx); err != nil {
				return err
			}
		case <-beat.C:
			if err := l.beat(ctx); err != nil {
				return err
			}
		case <-l.idle.C:
			if err := l.checkAll(ctx, false); err != nil {
				return err
			}
			l.idle.Reset(idleCheck)
		case <-rollup.C:
			l.rollUp()
		case <-l.tick.C:
			l.sendTick()
		}
	}
}

// take folds a message together with all that has arrived while the last
// commit ran. An idle bridge so commits a single message at once, and a busy
// one as many as came: nothing waits for a batch to fill.
func (l *loop) take(ctx context.Context, first *item) error {
	l.batch = l.batch[:0]
	bytes := 0
	for it := first; it != nil; it = l.poll(len(l.batch), bytes) {
		if it.session != it.log.session {
			continue // its session has ended; it will be read again
		}
		l.batch = append(l.batch, it)
		bytes += it.size
	}
	if len(l.batch) == 0 {
		return nil
	}
	if err := l.commit(ctx); err != nil {
		return err
	}
	l.idle.Reset(idleCheck)
	return nil
}

// poll is the next message that has arrived already and still fits.
func (l *loop) poll(n, bytes int) *item {
	if n >= l.config.BatchMax || bytes >= batchBytes {
		return nil
	}
	select {
	case it := <-l.items:
		return &it
	default:
		return nil
	}
}

// commit folds the batch in one transaction, and again until the register
// takes it: nothing is lost meanwhile, the log still holds it.
func (l *loop) commit(ctx context.Context) error {
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
	var trouble error
	first := time.Now()
	for {
		start := time.Now()
		out, err := l.try()
		if err == nil {
			l.health.green(PartRegister)
			l.committed(ctx, out, time.Since(start))
			if start.Sub(first) > stalledFrom {
				l.tell(verbStalled, map[string]any{"from": instant(first), "until": instant(start), "error": trouble.Error()})
			}
			return l.armTick(out.stepped || out.ticked)
		}
		trouble = err
		if !audit.Retryable(err) {
			l.health.red(PartRegister, err.Error())
			return fmt.Errorf("fold rows from %d on: %w", l.reg.LastID()+1, err)
		}
		l.health.red(PartRegister, err.Error())
		l.metrics.retries.Inc()
		l.log.Error("the register does not take rows; trying again", "err", err, "rows", len(l.batch))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry.NextBackOff()):
		}
	}
}

// try folds the batch once. The order of its steps is the order in which they
// become durable:
//
//  1. Begin. A crash here leaves the last batch; the log still has this one.
//  2. Rows, state, outbox and outcomes. A crash here leaves nothing of them:
//     they are in a transaction that never ends.
//  3. Cursors and commit. A crash before the commit is as above; one after it
//     leaves rows and cursor, so the next start goes on behind them. A commit
//     that fails although it happened stops the loop, and the next start reads
//     the cursor.
//  4. Answers, in committed. A crash before them leaves a requester without an
//     answer: the repeat of its request finds the first outcome.
//  5. The outbox, in publisher. A crash before it leaves the entries; one after
//     a publish leaves an entry whose event is in the log: the fold finds it
//     there before the publisher may send it again.
func (l *loop) try() (*folded, error) {
	out, err := l.once()
	if errors.Is(err, errCareful) {
		l.log.Warn("a machine failed; its batch is folded again step by step", "err", err)
		l.folder.careful = true
		out, err = l.once()
		l.folder.careful = false
	}
	return out, err
}

func (l *loop) once() (*folded, error) {
	b, err := l.reg.Begin()
	if err != nil {
		return nil, err
	}
	out := &folded{}
	for _, it := range l.batch {
		if err = l.folder.fold(b, it, out); err != nil {
			break
		}
	}
	if err == nil {
		err = l.folder.orCareful(l.folder.machines.flush(l.reg))
	}
	for _, r := range l.logs {
		if last := l.lastOf(r); err == nil && last != nil {
			err = b.SetCursor(r.name, last.row.Incarnation, last.row.Seq)
		}
	}
	if err == nil {
		err = b.Commit()
	}
	if err != nil {
		l.folder.machines.forget()
		return nil, errors.Join(err, b.Rollback())
	}
	l.publisher.hand(b.Queued())
	return out, nil
}

// lastOf is the last message of a log in the batch.
func (l *loop) lastOf(r *logReader) *item {
	for i := len(l.batch) - 1; i >= 0; i-- {
		if l.batch[i].log == r {
			return l.batch[i]
		}
	}
	return nil
}

// committed does what may follow a commit: answers, the index, the outbox.
func (l *loop) committed(ctx context.Context, out *folded, took time.Duration) {
	l.foldedAt = time.Now()
	// Before anybody is answered or woken: who then looks must know what time it is.
	now := l.reg.State()
	l.moment.Store(&moment{at: l.foldedAt, busNS: now.BusNS, logNS: now.LogNS})
	rows := make([]*audit.Row, len(l.batch))
	for i, it := range l.batch {
		rows[i] = it.row
		c := &it.log.cursor
		if it.opens != nil {
			c.StreamID, c.FirstSeq = it.opens.StreamID, it.opens.FirstSeq
		}
		c.Incarnation, c.Seq, it.log.known, it.log.pending = it.row.Incarnation, it.row.Seq, true, it.pending
		it.log.failures = 0
		it.log.ahead.Release(int64(it.size))
	}
	if err := l.config.on(BeforeReply); err != nil {
		l.log.Error("replies were not sent", "err", err)
	} else {
		l.waiters.answer(ctx, out.answers)
	}
	l.asks.offer(rows)
	l.polls.wake(out.woken)
	l.rpc.ask(out.requests)
	if l.index != nil {
		l.index.Offer(rows)
	}
	l.position.set(l.logs[0].cursor.Seq)
	l.rows.Store(l.reg.LastID())
	state := l.reg.State()
	l.backlog.Store(int64(l.logs[0].pending) + int64(len(l.items)))
	l.lastLogNS.Store(state.LogNS)
	l.lastCommit.Store(time.Now().UnixNano())
	if state.OutboxLast > state.OutboxSeen {
		l.publisher.wake()
	}
	l.outboxLast.Store(state.OutboxLast)
	l.outboxSeen.Store(state.OutboxSeen)
	l.metrics.committed(rows, out, took)
	l.health.lag(l.lag())
	if out.ticked {
		l.inFlight = time.Time{}
	}
	for _, key := range out.stuck {
		l.stuck[key] = l.foldedAt.Add(stuckRetry)
	}
	if err := l.reg.Bound(); err != nil {
		l.log.Warn("the write-ahead log was not checkpointed", "err", err)
	}
}
