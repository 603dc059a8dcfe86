package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox/audit"
	"signalbox/wire"
)

// How often things are looked at.
const (
	janitorEvery = 25 * time.Millisecond
	watchEvery   = 2 * time.Second
	thawMost     = 5 * time.Minute
	restEvery    = 20 * time.Second
	restFor      = 5 * time.Minute
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
			s.polls.expire(now)
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
	wall, disk := start.Round(0), disks{}
	var behind stall
	rested := rest{at: start, rows: b.rows.Load()}
	for {
		b.watchDisk(ctx, &disk)
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

// rest remembers when there was work, and when memory was given back.
type rest struct {
	rows     int64
	busy, at time.Time
}

// rest gives memory back to the system for a while after a burst: the runtime
// collects nothing while nothing is allocated, and so keeps what the burst, and
// the stream's account of it until its messages expire, took.
func (b *Bridge) rest(r *rest) {
	now, rows := time.Now(), b.rows.Load()
	if rows > r.rows+restRows || b.backlog.Load() > 0 {
		r.rows, r.busy = rows, now
		return
	}
	if now.Sub(r.busy) < restFor && now.Sub(r.at) > restEvery {
		debug.FreeOSMemory()
		r.at = now
	}
}

// instant is a time as bodies of the bridge write it.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// observation is something that the bridge has seen outside the log.
type observation struct {
	verb string
	body any
}

// tell queues an observation for the log. It never waits.
func (b *Bridge) tell(verb string, body any) {
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
			retry := backoff.NewExponentialBackOff(backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(0))
			m := &nats.Msg{Subject: b.config.Root.Command(wire.Bridge, bridgeName, o.verb), Data: raw,
				Header: nats.Header{wire.HeaderMsgID: {uuid.NewString()}}} // a lost PubAck must not double it
			// It ends without success with ctx only.
			_ = backoff.Retry(func() error {
				_, err := b.js.PublishMsg(ctx, m)
				return err
			}, backoff.WithContext(retry, ctx))
		}
	}
}

// watchDisk looks at the disks of the data and of the register.
func (b *Bridge) watchDisk(ctx context.Context, d *disks) {
	if b.config.DataDir == "" {
		return
	}
	reason, least, floorOfLeast := "", int64(math.MaxInt64), int64(0)
	for _, dir := range []string{b.config.DataDir, filepath.Dir(b.reader.Path())} {
		var fs syscall.Statfs_t
		if err := syscall.Statfs(dir, &fs); err != nil {
			b.health.red(PartDisk, fmt.Sprintf("free space of %s is unknown: %v", dir, err))
			return
		}
		free, total := int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize
		floor := Floor(b.config.MinFree, total)
		if free < floor {
			reason = fmt.Sprintf("%s has %d MiB free, at least %d MiB must be", dir, free>>20, floor>>20)
		}
		if free < least {
			least, floorOfLeast = free, floor
		}
	}
	b.diskFree.Store(least)
	b.health.set(PartDisk, reason)
	low := reason != ""
	// Before anything is said: a frozen stream takes no word.
	if !low && b.frozen.Load() && b.config.RestartServer != nil && time.Now().After(d.thaw) {
		d.wait = min(max(2*d.wait, watchEvery), thawMost) // a disk that only looks well is left alone
		d.thaw = time.Now().Add(d.wait)
		b.thaw(ctx)
	}
	if !b.frozen.Load() && time.Since(d.thaw) > thawMost {
		d.wait = 0
	}
	if low != d.low {
		d.low = low
		b.tell(verbDisk, map[string]any{"low": low, "free_bytes": least, "floor_bytes": floorOfLeast})
	}
	if size, err := audit.WALBytes(b.reader.Path()); err == nil {
		b.walBytes.Store(size)
		b.health.set(PartWAL, walReason(size))
	}
}

// disks is what the watch remembers of the disks.
type disks struct {
	low  bool
	thaw time.Time     // not before, the next restart of the server
	wait time.Duration // between restarts
}

func walReason(size int64) string {
	if size <= audit.WALAlarm {
		return ""
	}
	return fmt.Sprintf("the write-ahead log has %d MiB: some reader holds an old transaction open", size>>20)
}

// thaw restarts the embedded server: a stream that met a full disk takes
// nothing more until then, though there is space again.
func (b *Bridge) thaw(ctx context.Context) {
	b.log.Warn("there is space again; restarting the embedded server, whose streams are frozen")
	b.restarted.Store(true) // before the first client is back
	if err := b.config.RestartServer(ctx); err != nil {
		b.health.red(PartFrozen, "the embedded server did not restart: "+err.Error())
		b.log.Error("the embedded server did not restart", "err", err)
		return
	}
	from := time.Unix(0, b.frozenAt.Load())
	b.frozen.Store(false)
	b.health.green(PartFrozen)
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
	if counts, err := readCounts(ctx, b.reader); err == nil {
		setStates(b.metrics.agents, counts.agents)
		setStates(b.metrics.jobs, counts.jobs)
	}
}

// setStates sets a gauge for each state; a state that nothing is in any more
// goes.
func setStates(v *prometheus.GaugeVec, counts map[string]int64) {
	v.Reset()
	for state, n := range counts {
		v.WithLabelValues(state).Set(float64(n))
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
