package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox/audit"
	"signalbox/wire"
)

// RulesVersion names the rules of all machines together. It changes with every
// change of a rule that could fold the same log to another state.
const RulesVersion = "3"

// drainWithin bounds what a stop waits for: open requests and the outbox.
const drainWithin = 8 * time.Second

// drainQuiet is how many looks in a row must find nothing left to wait for.
const drainQuiet = 4

// Bounds of what the bridge publishes without waiting for each.
const (
	publishPending   = 4096
	publishTimeout   = 5 * time.Second
	observationQueue = 64
)

// JetStream is the JetStream context that a bridge needs: publishes that the
// server does not acknowledge fail after a time.
func JetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	return jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(publishPending), jetstream.WithPublishAsyncTimeout(publishTimeout))
}

// Parts are what a bridge is made of; the caller opens and closes them.
type Parts struct {
	JetStream jetstream.JetStream // made by JetStream
	Register  *audit.Register     // used by nothing else
	Reader    *audit.Reader
	Index     *audit.Index // nil: look-ups by id scan
	Machines  []Machine    // in the order in which they act
}

// Bridge folds the log into the register, answers requests, and announces what
// happened.
type Bridge struct {
	config   Config
	log      *slog.Logger
	nc       *nats.Conn
	js       jetstream.JetStream
	reg      *audit.Register
	reader   *audit.Reader
	index    *audit.Index
	machines machines

	health       *Health
	metrics      *metrics
	position     *position
	waiters      *waiters
	asks         *asks
	polls        *polls
	rpc          *rpc
	beats        *beats
	publisher    *publisher
	life         context.Context  //nolint:containedctx // the life of Run, which starts readers whenever a check says so
	observations chan observation // for the log
	nextDue      int64            // bus time of the earliest deadline; the loop's

	backlog    atomic.Int64 // messages received or waiting in the stream, not folded
	lastLogNS  atomic.Int64
	lastCommit atomic.Int64 // ns
	outboxLast atomic.Int64
	outboxSeen atomic.Int64
	rows       atomic.Int64
	moment     atomic.Pointer[moment] // of the last commit; nil before the first
	streamLast atomic.Uint64
	diskFree   atomic.Int64
	walBytes   atomic.Int64
	gaps, dead atomic.Int64
	frozen     atomic.Bool
	frozenAt   atomic.Int64
	restarted  atomic.Bool // the embedded server was, and the log has not been told
}

// New makes a bridge. It touches nothing until Run.
func New(config Config, parts Parts) (*Bridge, error) {
	if err := config.setDefaults(); err != nil {
		return nil, fmt.Errorf("bridge: %w", err)
	}
	if parts.JetStream == nil || parts.Register == nil || parts.Reader == nil {
		return nil, errors.New("bridge: a part is missing")
	}
	m, err := newMachines(parts.Machines)
	if err != nil {
		return nil, fmt.Errorf("bridge: %w", err)
	}
	b := &Bridge{config: config, log: config.Log, nc: parts.JetStream.Conn(), js: parts.JetStream,
		reg: parts.Register, reader: parts.Reader, index: parts.Index, machines: m,
		health: newHealth(), position: newPosition(), observations: make(chan observation, observationQueue)}
	b.waiters, b.asks, b.publisher = newWaiters(b), newAsks(b), newPublisher(b)
	b.rpc, b.beats, b.polls = newRPC(b), newBeats(), newPolls()
	b.metrics = newMetrics(b)
	return b, nil
}

// Collectors are the bridge's metrics.
func (b *Bridge) Collectors() []prometheus.Collector { return b.metrics.all }

// Health is which parts of the bridge are red.
func (b *Bridge) Health() *Health { return b.health }

// Position is the sequence number of the log up to which all is registered.
func (b *Bridge) Position() uint64 { return b.position.now() }

// lag is how far the fold is behind the log now.
func (b *Bridge) lag() lag {
	behind := b.backlog.Load()
	if behind == 0 {
		return lag{}
	}
	return lag{messages: behind, time: max(0, time.Duration(time.Now().UnixNano()-b.lastLogNS.Load()))}
}

// Run checks the log against the register, folds it, and serves requests until
// ctx ends; ready is called when it takes them. When ctx ends, Run stops taking
// requests, finishes what it has begun, sends the outbox, all within a bound,
// and joins every goroutine. hard ends everything at once; the next start
// recovers. The error is what the bridge could not go on from.
func (b *Bridge) Run(ctx, hard context.Context, ready func()) error {
	life, end := context.WithCancel(hard)
	defer end()
	b.life = life
	status := b.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer b.nc.RemoveStatusListener(status)
	l := &loop{Bridge: b, items: make(chan item, queueItems), troubles: make(chan trouble, 16), status: status,
		stuck:  map[dueKey]time.Time{},
		folder: folder{config: &b.config, machines: b.machines, log: b.log}}
	b.rows.Store(b.reg.LastID())
	state := b.reg.State()
	b.outboxLast.Store(state.OutboxLast)
	b.outboxSeen.Store(state.OutboxSeen)

	var joined sync.WaitGroup
	defer joined.Wait()
	defer end()
	spawn := func(f func(context.Context)) { joined.Go(func() { f(life) }) }
	if b.index != nil {
		spawn(b.follow)
	}
	// Before it takes requests there is nothing to finish: a stop is at once.
	opening, opened := context.WithCancel(life)
	unlink := context.AfterFunc(ctx, opened)
	err := l.open(opening)
	unlink()
	opened()
	if err != nil {
		l.stop()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	b.health.green(PartStart)
	spawn(b.publisher.run)
	spawn(b.watch)
	spawn(b.report)
	svc, err := b.serve()
	if err != nil {
		end()
		l.stop()
		return err
	}
	stopBeats, err := b.listen()
	if err != nil {
		end()
		l.stop()
		return errors.Join(err, svc.micro.Stop())
	}
	defer stopBeats()
	// The server must know the subscriptions before anybody is told to ask.
	if err := b.nc.FlushTimeout(publishTimeout); err != nil {
		end()
		l.stop()
		return errors.Join(fmt.Errorf("serve the API: %w", err), svc.micro.Stop())
	}
	spawn(b.rpc.run)
	spawn(svc.watch)
	spawn(svc.janitor)
	for range queryWorkers {
		spawn(svc.work)
	}
	for range lookWorkers {
		spawn(b.polls.work)
	}
	failed := make(chan error, 1)
	joined.Go(func() {
		failed <- l.run(life)
	})
	ready()
	select {
	case err := <-failed:
		return errors.Join(err, svc.micro.Stop())
	case <-ctx.Done():
	case <-hard.Done():
	}
	stop := svc.micro.Stop()
	b.polls.end()
	err = errors.Join(b.drain(hard, failed), stop)
	b.asks.end()
	if b.nc.IsConnected() {
		// The last answers; who does not get one asks again.
		_ = b.nc.FlushTimeout(time.Second)
	}
	return err
}

// drain waits, within a bound, until every request is answered and what the
// outbox held when the stop began is in the log; others may go on publishing.
func (b *Bridge) drain(hard context.Context, failed <-chan error) error {
	bound := time.NewTimer(drainWithin)
	defer bound.Stop()
	tick := time.NewTicker(janitorEvery)
	defer tick.Stop()
	last, quiet := b.outboxLast.Load(), 0
	// Requests that have arrived are still being handed to their endpoints.
	for quiet < drainQuiet {
		if quiet++; b.waiters.waiting() > 0 || b.outboxSeen.Load() < last {
			quiet = 0
		}
		select {
		case err := <-failed:
			return err
		case <-hard.Done():
			return nil
		case <-bound.C:
			b.log.Warn("stopping with work left; the next start goes on with it",
				"requests", b.waiters.waiting(), "outbox", b.outboxLast.Load()-b.outboxSeen.Load())
			return nil
		case <-tick.C:
		}
	}
	return nil
}

func (b *Bridge) follow(ctx context.Context) {
	if err := b.index.Run(ctx); err != nil && ctx.Err() == nil {
		b.log.Error("the index stopped; look-ups scan the register from now on", "err", err)
	}
}

// append publishes into the log without waiting for the PubAck.
func (b *Bridge) append(subject string, h wire.Header, body []byte) error {
	_, err := b.js.PublishMsgAsync(&nats.Msg{Subject: subject, Header: nats.Header(h), Data: body})
	if err != nil {
		return fmt.Errorf("append to the log: %w", err)
	}
	return nil
}

// appendCommand appends a command of the bridge itself to the log. The PubAck
// is not waited for: the command has an effect when it is folded.
func (b *Bridge) appendCommand(machine, verb string, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return b.append(b.config.Root.Command(wire.Bridge, machine, verb), nil, raw)
}

const never = math.MaxInt64
