package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/wire"
)

// inFlightMax is how many entries of the outbox are published before the first
// of them is acknowledged.
const inFlightMax = 256

// publisher sends the outbox, in its order, from one goroutine. An entry is
// done when the fold has seen it come back, not when the server says so.
type publisher struct {
	*Bridge
	signal chan struct{} // there may be more to send
	lost   chan struct{} // what was sent may be lost
	after  int64         // entries up to here were sent

	mu    sync.Mutex // guards what follows
	ready []audit.Outgoing
	bytes int // of the bodies in ready
}

// Bounds of the entries that are handed on in memory; what is beyond is read
// from the register.
const (
	readyMost  = 4096
	readyBytes = 16 << 20
)

// hand takes the entries of a commit, so that they need not be read again. They
// follow each other without a hole, or are left to be read.
func (p *publisher) hand(entries []audit.Outgoing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.ready); n > 0 && len(entries) > 0 && p.ready[n-1].N+1 != entries[0].N {
		p.ready, p.bytes = nil, 0
	}
	for _, o := range entries {
		if p.bytes += len(o.Body); len(p.ready) == readyMost || p.bytes > readyBytes {
			p.ready, p.bytes = nil, 0
			return
		}
		p.ready = append(p.ready, o)
	}
}

// next are the next entries to send, from memory where they are there.
func (p *publisher) next(ctx context.Context) ([]audit.Outgoing, error) {
	p.mu.Lock()
	for len(p.ready) > 0 && p.ready[0].N <= p.after {
		p.drop(1)
	}
	var some []audit.Outgoing
	if len(p.ready) > 0 && p.ready[0].N == p.after+1 {
		some = append(some, p.ready[:min(inFlightMax, len(p.ready))]...)
		p.drop(len(some))
	}
	p.mu.Unlock()
	if len(some) > 0 {
		return some, nil
	}
	return p.reader.Unseen(ctx, p.after, inFlightMax)
}

// drop drops the first n that are ready; the caller holds the lock.
func (p *publisher) drop(n int) {
	for _, o := range p.ready[:n] {
		p.bytes -= len(o.Body)
	}
	clear(p.ready[:n])
	if p.ready = p.ready[n:]; len(p.ready) == 0 {
		p.ready, p.bytes = nil, 0
	}
}

// forget leaves everything to be read: what was sent of it is not known.
func (p *publisher) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready, p.bytes = nil, 0
}

func newPublisher(b *Bridge) *publisher {
	return &publisher{Bridge: b, signal: make(chan struct{}, 1), lost: make(chan struct{}, 1)}
}

func (p *publisher) wake()   { poke(p.signal) }
func (p *publisher) resync() { poke(p.lost); poke(p.signal) }

// poke leaves one token in c; a second one says no more than the first.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	poke(p.lost)
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		err := p.send(ctx)
		if err == nil {
			retry.Reset()
			select {
			case <-ctx.Done():
			case <-p.signal:
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		p.metrics.publishFailures.Inc()
		p.log.Warn("the outbox was not published; trying again", "err", err)
		poke(p.lost)
		select {
		case <-ctx.Done():
		case <-time.After(retry.NextBackOff()):
		}
	}
}

// send publishes all entries that have not been seen and were not sent.
func (p *publisher) send(ctx context.Context) error {
	for {
		select {
		case <-p.lost:
			if err := p.catchUp(ctx); err != nil {
				poke(p.lost)
				return err
			}
			p.forget()
			p.after = 0
		default:
		}
		entries, err := p.next(ctx)
		if err != nil || len(entries) == 0 {
			return err
		}
		if err := p.config.on(BeforePublish); err != nil {
			return err
		}
		if err := p.publish(ctx, entries); err != nil {
			return err
		}
		if err := p.config.on(AfterPublish); err != nil {
			return err
		}
		p.after = entries[len(entries)-1].N
	}
}

// catchUp waits until the fold has passed everything that the stream has now.
// What was sent before is then known to be in the log or not, however long ago
// that was, and nothing is sent twice.
func (p *publisher) catchUp(ctx context.Context) error {
	for {
		ask, cancel := context.WithTimeout(ctx, publishTimeout)
		stream, err := p.js.Stream(ask, p.config.Stream)
		if err == nil {
			err = p.position.wait(ask, stream.CachedInfo().State.LastSeq)
		}
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil || stream == nil:
			return fmt.Errorf("stream %s: %w", p.config.Stream, err)
		}
		// Far behind, or the log went back meanwhile: its end is another now.
	}
}

// publish sends the entries in order and waits for what the server says of
// each.
func (p *publisher) publish(ctx context.Context, entries []audit.Outgoing) error {
	futures := make([]jetstream.PubAckFuture, 0, len(entries))
	for i := range entries {
		f, err := p.js.PublishMsgAsync(&nats.Msg{Subject: entries[i].Subject, Header: nats.Header(entries[i].Header), Data: entries[i].Body})
		if refusedForGood(err) {
			p.giveUp(entries[i], err)
			futures = append(futures, nil)
			continue
		}
		if err != nil {
			return fmt.Errorf("publish %s: %w", entries[i].Subject, err)
		}
		futures = append(futures, f)
	}
	for i, f := range futures {
		if f == nil {
			continue
		}
		select {
		case ack := <-f.Ok():
			if ack.Duplicate {
				if err := p.duplicate(ctx, entries[i], ack.Sequence); err != nil {
					return err
				}
			}
		case err := <-f.Err():
			if !refusedForGood(err) {
				return fmt.Errorf("publish %s: %w", entries[i].Subject, err)
			}
			p.giveUp(entries[i], err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// duplicate settles what the server took for a repeat: of the entry itself, or
// of another message that used up its id. The latter is sent under another.
func (p *publisher) duplicate(ctx context.Context, o audit.Outgoing, seq uint64) error {
	m, err := stored(ctx, p.nc, p.config.Stream, seq, false)
	if err != nil && !errors.Is(err, errNoMessage) {
		return err
	}
	if err == nil && m.subject == o.Subject && bytes.Equal(m.data, o.Body) {
		return nil
	}
	h := nats.Header{}
	for name, values := range o.Header {
		h[name] = values
	}
	h.Set(wire.HeaderMsgID, o.ID+".again") // it too may be sent twice within the window
	h.Set(wire.HeaderOutboxID, o.ID)
	_, err = p.js.PublishMsg(ctx, &nats.Msg{Subject: o.Subject, Header: h, Data: o.Body})
	return err
}

// refusedForGood reports whether the server, or the client on its behalf, will
// never take the message.
func refusedForGood(err error) bool {
	if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) || errors.Is(err, nats.ErrBadHeaderMsg) {
		return true
	}
	var api *jetstream.APIError
	const streamMessageTooLarge = 10054
	return errors.As(err, &api) && api.ErrorCode == streamMessageTooLarge
}

// giveUp says through the log that an entry will never be taken.
func (p *publisher) giveUp(o audit.Outgoing, cause error) {
	p.log.Error("an event can never be published", "id", o.ID, "subject", o.Subject, "err", cause)
	p.tell(verbOutboxRefused, outboxRefused{ID: o.ID, Error: cause.Error()})
}
