package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// Bounds of the phases.
const (
	lagFor      = 10 * time.Second
	lagRate     = 5_000 // messages a second, when no capture rate is known
	apiRequests = 2_000
	apiWithin   = 10 * time.Second
)

// pass sends messages through the node, under a bar, and adds up what is lost.
func (r *run) pass(ctx context.Context, name string, count int, rate float64, every time.Duration) (*passage, error) {
	bar := r.bar(name, count)
	defer bar.end()
	p, err := r.node.pass(ctx, count, rate, every, bar.add)
	if err != nil {
		return nil, err
	}
	r.result.Doubled = plus(r.result.Doubled, p.doubled)
	return p, nil
}

func plus(sum *int, n int) *int {
	if sum != nil {
		n += *sum
	}
	return &n
}

func (r *run) capture(ctx context.Context) error {
	p, err := r.pass(ctx, "capture", r.options.Messages, 0, lookEvery)
	if err != nil {
		return err
	}
	r.result.Lost = plus(r.result.Lost, p.lost)
	r.result.CapturePerS = ptr(p.rate(r.options.Messages - p.lost))
	r.result.IndexLagS = p.indexLag()
	return nil
}

func (r *run) ceilingAfter(ctx context.Context) (err error) {
	r.result.CeilingAfter, err = r.ceiling(ctx, "ceiling-after")
	return err
}

// lag measures at half the capture rate.
func (r *run) lag(ctx context.Context) error {
	rate := float64(lagRate)
	if r.result.CapturePerS != nil {
		rate = *r.result.CapturePerS / 2
	}
	count := max(1, min(int(rate*lagFor.Seconds()), r.options.Messages))
	p, err := r.pass(ctx, "lag", count, rate, lookClosely)
	if err != nil {
		return err
	}
	r.result.Lost = plus(r.result.Lost, p.lost)
	lags, err := r.node.lags(ctx, p)
	if err != nil || len(lags) == 0 {
		return err
	}
	r.result.LagPerS = ptr(p.rate(len(lags)))
	r.result.LagP50MS, r.result.LagP99MS = ptr(ms(quantile(lags, 0.5))), ptr(ms(quantile(lags, 0.99)))
	return nil
}

// lags are the lags of the rows of a passage, sorted.
func (n *node) lags(ctx context.Context, p *passage) ([]time.Duration, error) {
	var lags []time.Duration
	err := n.reader.View(ctx, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, `SELECT id, at FROM messages WHERE id > ? AND id <= ? AND kind = 'msg' ORDER BY id`, p.base, p.last)
		if err != nil {
			return fmt.Errorf("read times: %w", err)
		}
		defer rows.Close()
		for rows.Next() {
			var id, at int64
			if err := rows.Scan(&id, &at); err != nil {
				return fmt.Errorf("read times: %w", err)
			}
			lags = append(lags, p.seen(id).Sub(time.Unix(0, at)))
		}
		return rows.Err()
	})
	slices.Sort(lags)
	return lags, err
}

func (r *run) burst(ctx context.Context) error {
	p, err := r.pass(ctx, "burst", r.options.BurstMessages, 0, lookEvery)
	if err != nil {
		return err
	}
	r.result.BurstMessages, r.result.BurstLost = ptr(r.options.BurstMessages), ptr(p.lost)
	return nil
}

// api measures the round trip of message.send.
func (r *run) api(ctx context.Context) error {
	count := min(apiRequests, r.options.Messages)
	bar := r.bar("api", count)
	defer bar.end()
	conn, err := nats.Connect(r.node.conn.ConnectedUrl(), nats.Name("signalbox bench api"))
	if err != nil {
		return err
	}
	defer conn.Close()
	trips := make([]time.Duration, 0, count)
	for i := range count {
		start := time.Now()
		_, err := r.node.ask(ctx, conn, "bench", "message", "send", fmt.Appendf(nil, `{"to":"agent-00","payload":{"n":%d}}`, i))
		trips = append(trips, time.Since(start))
		if err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
		bar.add(1)
	}
	slices.Sort(trips)
	r.result.APIP50MS, r.result.APIP99MS = ptr(ms(quantile(trips, 0.5))), ptr(ms(quantile(trips, 0.99)))
	return nil
}

// memory sends what is missing of MemoryMessages through the node and reads what
// its process holds then.
func (r *run) memory(ctx context.Context) error {
	for {
		last, err := r.node.reader.LastID(ctx)
		if err != nil {
			return err
		}
		missing := int64(r.options.MemoryMessages) - last
		if missing <= 0 {
			return r.readMemory(last)
		}
		p, err := r.pass(ctx, "memory", min(int(missing), max(r.options.Messages, 1)), 0, lookEvery)
		if err != nil {
			return err
		}
		r.result.Lost = plus(r.result.Lost, p.lost)
		if p.last == p.base {
			return errors.New("the node takes no messages any more")
		}
	}
}

func (r *run) readMemory(last int64) error {
	const mib = 1 << 20
	now, most, err := memoryOf(r.node.process.cmd.Process.Pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a system without /proc: not measured
	}
	if err != nil {
		return err
	}
	r.result.RSSMiB, r.result.RSSPeakMiB, r.result.RSSMessages = ptr(float64(now)/mib), ptr(float64(most)/mib), &last
	return nil
}

// quantile is the q-quantile of sorted values, by the nearest rank.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
