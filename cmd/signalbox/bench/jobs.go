package bench

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// What the phase of the jobs does.
const (
	supervisor   = "supervisor"
	worker       = "worker"
	mostCycles   = 12_000
	inFlight     = 256 // jobs at once
	standingJobs = 100_000
	dueAtOnce    = 1_000
	dueIn        = 4 * time.Second // from when they are created
)

// jobs measures whole lives of jobs, with live agents and through inboxes, and
// what others wait for while a tick finds a thousand jobs due among a hundred
// thousand.
func (r *run) jobs(ctx context.Context) error {
	conn, err := nats.Connect(r.node.conn.ConnectedUrl(), nats.Name("signalbox bench jobs"))
	if err != nil {
		return err
	}
	defer conn.Close()
	count := min(mostCycles, r.options.Messages)
	for _, way := range []struct {
		delivery string
		cycles   func(context.Context, *nats.Conn, string, int, func(int)) error
		rate     **float64
		count    int
	}{{live, r.cycles, &r.result.JobsPerS, count}, {inbox, r.inboxCycles, &r.result.JobsInboxPerS, max(1, count/2)}} {
		for _, agent := range []string{supervisor, worker} {
			body, err := json.Marshal(map[string]any{"delivery": way.delivery, "heartbeat_ttl_ms": time.Hour.Milliseconds()})
			if err != nil {
				return err
			}
			if _, err := r.node.ask(ctx, conn, agent, "agents", "register", body); err != nil {
				return err
			}
		}
		if err := r.node.settle(ctx); err != nil {
			return err
		}
		bar := r.bar("jobs, "+way.delivery, way.count)
		start := time.Now()
		err := way.cycles(ctx, conn, way.delivery, way.count, bar.add)
		bar.end()
		if err != nil {
			return err
		}
		*way.rate = ptr(float64(way.count) / time.Since(start).Seconds())
	}
	return r.dueJobs(ctx, conn)
}

// cycles takes jobs through create, running and succeeded, each a request.
func (r *run) cycles(ctx context.Context, conn *nats.Conn, name string, count int, done func(int)) error {
	work, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(inFlight, count) {
		work.Go(func() error {
			for {
				n := next.Add(1)
				if n > int64(count) {
					return nil
				}
				id := fmt.Sprintf("%s-%d", name, n)
				if err := r.create(ctx, conn, id); err != nil {
					return err
				}
				for _, status := range []string{"running", "succeeded"} {
					if err := r.report(ctx, conn, id, status); err != nil {
						return err
					}
				}
				done(1)
			}
		})
	}
	return work.Wait()
}

func (r *run) create(ctx context.Context, conn *nats.Conn, id string) error {
	_, err := r.node.ask(ctx, conn, supervisor, "assign", "create",
		fmt.Appendf(nil, `{"job_id":%q,"worker_agent":%q,"task":"to do","payload":{"n":1}}`, id, worker))
	return err
}

func (r *run) report(ctx context.Context, conn *nats.Conn, id, status string) error {
	_, err := r.node.ask(ctx, conn, worker, "assign", "report",
		fmt.Appendf(nil, `{"job_id":%q,"attempt":1,"status":%q,"result":{"ok":true}}`, id, status))
	return err
}

// fetchSome fetches messages, waiting for the first.
func (r *run) fetchSome(ctx context.Context, conn *nats.Conn, agent string, acked bool) (ids []int64, bodies []string, err error) {
	reply, err := r.node.ask(ctx, conn, agent, "inbox", "fetch", fmt.Appendf(nil, `{"max_messages":100,"wait_ms":1000,"auto_ack":%t}`, acked))
	if err != nil {
		return nil, nil, err
	}
	var fetched struct {
		Messages []struct {
			ID   int64  `json:"id"`
			Body string `json:"body"`
		} `json:"messages"`
	}
	err = json.Unmarshal(reply, &fetched)
	for _, m := range fetched.Messages {
		ids, bodies = append(ids, m.ID), append(bodies, m.Body)
	}
	return ids, bodies, err
}

// inboxCycles takes jobs through the same, with the handoff fetched and acked by
// the worker and the result by the supervisor.
func (r *run) inboxCycles(ctx context.Context, conn *nats.Conn, name string, count int, done func(int)) error {
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { // the supervisor creates
		creating, ctx := errgroup.WithContext(ctx)
		creating.SetLimit(inFlight / 2)
		for n := range count {
			creating.Go(func() error { return r.create(ctx, conn, name+"-"+strconv.Itoa(n)) })
		}
		return creating.Wait()
	})
	all.Go(func() error { // the worker works
		working, ctx := errgroup.WithContext(ctx)
		working.SetLimit(inFlight)
		for taken := 0; taken < count; {
			ids, bodies, err := r.fetchSome(ctx, conn, worker, false)
			if err != nil {
				return err
			}
			taken += len(ids)
			for _, body := range bodies {
				var handoff struct {
					ID string `json:"assign_job_id"`
				}
				if err := json.Unmarshal([]byte(body), &handoff); err != nil {
					return err
				}
				working.Go(func() error {
					if err := r.report(ctx, conn, handoff.ID, "running"); err != nil {
						return err
					}
					return r.report(ctx, conn, handoff.ID, "succeeded")
				})
			}
			if len(ids) > 0 {
				raw, err := json.Marshal(map[string]any{"ids": ids})
				if err != nil {
					return err
				}
				if _, err := r.node.ask(ctx, conn, worker, "inbox", "ack", raw); err != nil {
					return err
				}
			}
		}
		return working.Wait()
	})
	all.Go(func() error { // the supervisor hears of the ends
		for heard := 0; heard < count; {
			ids, _, err := r.fetchSome(ctx, conn, supervisor, true)
			if err != nil {
				return err
			}
			heard += len(ids)
			done(len(ids))
		}
		return nil
	})
	return all.Wait()
}

// dueJobs asks for small things while a tick finds jobs due.
func (r *run) dueJobs(ctx context.Context, conn *nats.Conn) error {
	for _, agent := range []string{supervisor, worker} {
		body := fmt.Appendf(nil, `{"delivery":"live","heartbeat_ttl_ms":%d}`, time.Hour.Milliseconds())
		if _, err := r.node.ask(ctx, conn, agent, "agents", "register", body); err != nil {
			return err
		}
	}
	standing := min(standingJobs, 10*r.options.Messages)
	bar := r.bar("standing jobs", standing)
	defer bar.end()
	publish := func(id string, more string) error {
		return conn.Publish("bus.cmd."+supervisor+".assign.create",
			fmt.Appendf(nil, `{"job_id":%q,"worker_agent":%q,"task":"to do","timeout_ms":86400000%s}`, id, worker, more))
	}
	jobs := func(where string) (n int, err error) {
		err = r.node.reader.View(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT count(*) FROM jobs WHERE job_id GLOB ?`, where).Scan(&n)
		})
		return n, err
	}
	later := time.Now().Add(12 * time.Hour).UnixMilli()
	for n := range standing {
		if err := publish("standing-"+strconv.Itoa(n), fmt.Sprintf(`,"run_at_ms":%d`, later)); err != nil {
			return err
		}
	}
	if err := r.node.until(ctx, "the standing jobs are created", func() (bool, error) {
		n, err := jobs("standing-*")
		bar.set(n)
		if n < standing || err != nil {
			return false, err
		}
		// Their events are out as well.
		err = r.node.reader.View(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT outbox_last - outbox_seen FROM bridge_state`).Scan(&n)
		})
		return n == 0, err
	}); err != nil {
		return err
	}
	at := time.Now().Add(dueIn).UnixMilli()
	for n := range dueAtOnce {
		if err := publish("due-"+strconv.Itoa(n), fmt.Sprintf(`,"run_at_ms":%d`, at)); err != nil {
			return err
		}
	}
	var trips []time.Duration
	err := r.node.until(ctx, "the due jobs are dispatched", func() (bool, error) {
		start := time.Now()
		if _, err := r.node.ask(ctx, conn, "bench", "message", "send", []byte(`{"to":"agent-00"}`)); err != nil {
			return false, err
		}
		trips = append(trips, time.Since(start))
		var n int
		err := r.node.reader.View(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT count(*) FROM jobs WHERE job_id GLOB 'due-*' AND dispatched_at_ms IS NOT NULL`).Scan(&n)
		})
		return n >= dueAtOnce, err
	})
	if err != nil {
		return err
	}
	slices.Sort(trips)
	r.result.JobsDelayMS = ptr(ms(trips[len(trips)-1]))
	return nil
}
