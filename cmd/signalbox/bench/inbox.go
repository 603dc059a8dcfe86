package bench

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// What the phase of the inbox does.
const (
	hoarder      = "hoarder" // the agent whose inbox is full
	pending      = 100_000   // messages that wait for it
	fetches      = 50
	fetchedAtOne = 100
	expiring     = 10_000 // messages that expire together
	expireAfter  = 3 * time.Second
)

// inbox measures a fetch from a full inbox, and what other requests wait for
// while thousands of messages expire at once.
func (r *run) inbox(ctx context.Context) error {
	conn, err := nats.Connect(r.node.conn.ConnectedUrl(), nats.Name("signalbox bench inbox"))
	if err != nil {
		return err
	}
	defer conn.Close()
	body, err := json.Marshal(map[string]any{"heartbeat_ttl_ms": time.Hour.Milliseconds()})
	if err != nil {
		return err
	}
	if _, err := r.node.ask(ctx, conn, hoarder, "agents", "register", body); err != nil {
		return err
	}
	if err := r.hoard(ctx, conn, "inbox", pending, 24*time.Hour); err != nil {
		return err
	}
	if err := r.fetch(ctx, conn); err != nil {
		return err
	}
	return r.expire(ctx, conn)
}

// hoard sends messages of all priorities to the one inbox.
func (r *run) hoard(ctx context.Context, conn *nats.Conn, name string, count int, ttl time.Duration) error {
	bar := r.bar(name, count)
	defer bar.end()
	base, err := r.node.reader.LastID(ctx)
	if err != nil {
		return err
	}
	for i := range count {
		m := &nats.Msg{Subject: "bus.msg.bench.agent." + hoarder, Data: []byte(`{"work":"to do"}`), Header: nats.Header{
			"Bus-Priority": {strconv.Itoa(1 + i%9)}, "Bus-TTL-Ms": {strconv.FormatInt(ttl.Milliseconds(), 10)}}}
		if err := conn.PublishMsg(m); err != nil {
			return err
		}
	}
	return r.node.until(ctx, "the messages are registered", func() (bool, error) {
		last, err := r.node.reader.LastID(ctx)
		bar.set(int(min(last-base, int64(count))))
		return last >= base+int64(count), err
	})
}

// until waits for a condition, within a minute.
func (n *node) until(ctx context.Context, what string, condition func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not within a minute: "+what))
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if done, err := condition(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), n.process.check())
		case <-tick.C:
		}
	}
}

func (r *run) fetch(ctx context.Context, conn *nats.Conn) error {
	var trips []time.Duration
	for range fetches {
		start := time.Now()
		reply, err := r.node.ask(ctx, conn, hoarder, "inbox", "fetch", fmt.Appendf(nil, `{"max_messages":%d}`, fetchedAtOne))
		trips = append(trips, time.Since(start))
		if err != nil {
			return err
		}
		var fetched struct {
			Messages []struct {
				Priority int `json:"priority"`
			} `json:"messages"`
		}
		if err := json.Unmarshal(reply, &fetched); err != nil {
			return err
		}
		if len(fetched.Messages) != fetchedAtOne || fetched.Messages[0].Priority != 9 {
			return fmt.Errorf("a fetch gave %d messages, the first %+v", len(fetched.Messages), fetched.Messages[:min(1, len(fetched.Messages))])
		}
	}
	slices.Sort(trips)
	r.result.FetchP50MS, r.result.FetchP99MS = ptr(ms(quantile(trips, 0.5))), ptr(ms(quantile(trips, 0.99)))
	return nil
}

// expire asks for small things all the time while the messages expire.
func (r *run) expire(ctx context.Context, conn *nats.Conn) error {
	dead := func() (n int, err error) {
		err = r.node.reader.View(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT count(*) FROM dead_letters WHERE reason = 'ttl_expired'`).Scan(&n)
		})
		return n, err
	}
	before, err := dead()
	if err != nil {
		return err
	}
	if err := r.hoard(ctx, conn, "expiry", expiring, expireAfter); err != nil {
		return err
	}
	var trips []time.Duration
	err = r.node.until(ctx, "the messages have expired", func() (bool, error) {
		start := time.Now()
		if _, err := r.node.ask(ctx, conn, "bench", "message", "send", []byte(`{"to":"agent-00"}`)); err != nil {
			return false, err
		}
		trips = append(trips, time.Since(start))
		n, err := dead()
		return n >= before+expiring, err
	})
	if err != nil {
		return err
	}
	slices.Sort(trips)
	r.result.ExpiryDelayMS = ptr(ms(trips[len(trips)-1]))
	return nil
}
