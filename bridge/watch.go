package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/wire"
)

// How often things are looked at.
const (
	janitorEvery = 25 * time.Millisecond
	watchEvery   = 2 * time.Second
	restEvery    = 20 * time.Second
	restRows     = 10_000 // fewer leave nothing worth giving back
)

// Floor is the free space that must be left of a disk of total bytes: min, or
// the larger of 1 GiB and 5 %.
func Floor(minFree, total int64) int64 {
	if minFree > 0 {
		return minFree
	}
	return max(1<<30, total/20)
}

// janitor ends what has waited too long, until ctx ends.
func (s *service) janitor(ctx context.Context) {
	tick := time.NewTicker(janitorEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.asks.expire(now)
			s.waiters.expire(now)
		}
	}
}

// watch looks at what the loop does not see, until ctx ends: the disk, the
// clock, how near the stream's end of retention is.
func (b *Bridge) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	start := time.Now()
	wall, diskLow := start.Round(0), false
	var behind stall
	rested := rest{at: start}
	for {
		b.watchDisk(ctx, &diskLow)
		b.watchStream(ctx)
		reason := b.lag().reason()
		if reason == "" {
			reason = behind.reason(b.streamLast.Load(), b.position.now(), start)
		}
		b.health.set(PartLag, reason)
		b.rest(&rested)
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			// Two clocks: the difference that grew is a step of the wall clock.
			step := now.Round(0).Sub(wall) - now.Sub(start)
			start, wall = now, now.Round(0)
			if step > clockStep { // a step back shows in the log itself
				b.tell(verbClockStep, map[string]any{"direction": "forward", "step_ms": step.Milliseconds()})
			}
		}
	}
}

// stall notices a fold that stands still while the log has more, which a fold
// that stands still cannot say itself.
type stall struct {
	position uint64
	since    time.Time
}

func (s *stall) reason(last, position uint64, now time.Time) string {
	if s.since.IsZero() || position >= last || position != s.position {
		s.position, s.since = position, now
		return ""
	}
	if still := now.Sub(s.since); still > 2*lagTime {
		return fmt.Sprintf("nothing was folded for %s though the log has %d more", still.Round(time.Second), last-position)
	}
	return ""
}

// rest is when memory was last given back, and the rows then.
type rest struct {
	at   time.Time
	rows int64
}

// rest gives memory back to the system after a burst: the runtime collects
// nothing while nothing is allocated, and so keeps what the burst took.
func (b *Bridge) rest(last *rest) {
	rows := b.rows.Load()
	if b.backlog.Load() > 0 || rows < last.rows+restRows || time.Since(last.at) < restEvery {
		return
	}
	debug.FreeOSMemory()
	last.at, last.rows = time.Now(), rows
}

// instant is a time as bodies of the bridge write it.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// observation is something that the bridge has seen outside the log.
type observation struct {
	verb string
	body map[string]any
}

// tell queues an observation for the log. It never waits.
func (b *Bridge) tell(verb string, body map[string]any) {
	select {
	case b.observations <- observation{verb, body}:
	default:
		b.metrics.untold.Inc()
		b.log.Error("an observation was not put into the log: too many wait", "verb", verb)
	}
}

// report appends the observations, each until the log has it, until ctx ends.
func (b *Bridge) report(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-b.observations:
			raw, err := json.Marshal(o.body)
			if err != nil {
				b.log.Error("an observation cannot be written", "verb", o.verb, "err", err)
				continue
			}
			retry := backoff.NewExponentialBackOff(backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
			// It ends without success with ctx only.
			_ = backoff.Retry(func() error {
				_, err := b.js.Publish(ctx, b.config.Root.Command(wire.Bridge, bridgeName, o.verb), raw)
				return err
			}, backoff.WithContext(retry, ctx))
		}
	}
}

func (b *Bridge) watchDisk(ctx context.Context, low *bool) {
	if b.config.DataDir == "" {
		return
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(b.config.DataDir, &fs); err != nil {
		b.health.red(PartDisk, fmt.Sprintf("free space of %s is unknown: %v", b.config.DataDir, err))
		return
	}
	free, total := int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize
	b.diskFree.Store(free)
	floor := Floor(b.config.MinFree, total)
	was := *low
	if *low = free < floor; *low {
		b.health.red(PartDisk, fmt.Sprintf("%d MiB free, at least %d MiB must be", free>>20, floor>>20))
	} else {
		b.health.green(PartDisk)
	}
	// Before anything is said: a frozen stream takes no word.
	if !*low && b.frozen.Load() && b.config.RestartServer != nil {
		b.thaw(ctx)
	}
	if *low != was {
		b.tell(verbDisk, map[string]any{"low": *low, "free_bytes": free, "floor_bytes": floor})
	}
	if size, err := audit.WALBytes(b.reader.Path()); err == nil {
		b.walBytes.Store(size)
		if b.health.set(PartWAL, ""); size > audit.WALAlarm {
			b.health.red(PartWAL, fmt.Sprintf("the write-ahead log has %d MiB: some reader holds an old transaction open", size>>20))
		}
	}
}

// thaw restarts the embedded server: a stream that met a full disk takes
// nothing more until then, though there is space again.
func (b *Bridge) thaw(ctx context.Context) {
	b.log.Warn("there is space again; restarting the embedded server, whose streams are frozen")
	if err := b.config.RestartServer(ctx); err != nil {
		b.health.red(PartFrozen, "the embedded server did not restart: "+err.Error())
		b.log.Error("the embedded server did not restart", "err", err)
		return
	}
	from := time.Unix(0, b.frozenAt.Load())
	b.frozen.Store(false)
	b.health.green(PartFrozen)
	b.restarted.Store(true)
	b.tell(verbOverflow, map[string]any{"kind": "out_of_space", "from": instant(from),
		"until": instant(time.Now())})
}

// Frozen tells the bridge that a stream met a full disk. What was published
// without waiting for the PubAck since then may be lost; an event says so.
func (b *Bridge) Frozen(at time.Time) {
	if b.frozen.CompareAndSwap(false, true) {
		b.frozenAt.Store(at.UnixNano())
		b.health.red(PartFrozen, "a stream met a full disk; its server is restarted when there is space")
	}
}

// Overflowed tells the bridge that the server dropped messages it had no room
// to take in. An event gives the time span.
func (b *Bridge) Overflowed(from, until time.Time) {
	b.tell(verbOverflow, map[string]any{"kind": "ingest", "from": instant(from),
		"until": instant(until)})
}

// watchStream notices when retention is about to overtake the fold.
func (b *Bridge) watchStream(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	s, err := b.js.Stream(ctx, b.config.Stream)
	if err != nil {
		return // the loop's check says what is wrong
	}
	state := s.CachedInfo().State
	b.streamLast.Store(state.LastSeq)
	b.health.set(PartRetention, retention(state, b.position.now()))
	if counts, err := b.reader.Counts(ctx); err == nil {
		b.gaps.Store(counts.Gaps)
		b.dead.Store(counts.DeadLetters)
	}
}

// retention says that the cursor is within a tenth of the stream's first
// message while there is more to read.
func retention(s jetstream.StreamState, cursor uint64) string {
	if s.Msgs == 0 || cursor >= s.LastSeq {
		return ""
	}
	if span := s.LastSeq - s.FirstSeq; span >= 10 && cursor < s.FirstSeq+span/10 {
		return fmt.Sprintf("the fold is at %d and the stream begins at %d: it will drop what is not registered", cursor, s.FirstSeq)
	}
	return ""
}
