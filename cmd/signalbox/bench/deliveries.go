package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// How recipients take messages, as registration has it.
const (
	live  = "live"  // nothing is kept for them
	inbox = "inbox" // a delivery is kept of every message
)

// rounds are how often the capture with deliveries is measured beside the one
// without: what slows the machine down for a while then slows both.
const rounds = 2

// register registers every recipient of the load anew, for longer than a bench
// takes.
func (n *node) register(ctx context.Context, delivery string) error {
	for i := range recipients {
		agent := recipientID(i)
		body, err := json.Marshal(map[string]any{"delivery": delivery, "heartbeat_ttl_ms": time.Hour.Milliseconds()})
		if err != nil {
			return err
		}
		if _, err := n.ask(ctx, n.conn, agent, "agents", "register", body); err != nil {
			return err
		}
	}
	return nil
}

// ask asks the node's API and gives the answer; a refusal is an error.
func (n *node) ask(ctx context.Context, conn *nats.Conn, from, machine, verb string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, apiWithin)
	defer cancel()
	subject := "bus.api." + from + "." + machine + "." + verb
	reply, err := conn.RequestWithContext(ctx, subject, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	if reply.Header.Get("Nats-Service-Error-Code") != "" {
		return nil, fmt.Errorf("%s: refused: %s", subject, reply.Data)
	}
	return reply.Data, nil
}

// deliveries measures the capture of messages that each leave a delivery,
// beside that of messages that leave none.
func (r *run) deliveries(ctx context.Context) error {
	count := max(1, r.options.Messages/rounds)
	var took [2]time.Duration
	var rows [2]int
	for range rounds {
		for i, delivery := range []string{live, inbox} {
			if err := r.node.register(ctx, delivery); err != nil {
				return err
			}
			if err := r.node.settle(ctx); err != nil {
				return err
			}
			p, err := r.pass(ctx, "capture, "+delivery, count, 0, lookEvery)
			if err != nil {
				return err
			}
			r.result.Lost = plus(r.result.Lost, p.lost)
			took[i] += p.ended.Sub(p.began)
			rows[i] += count - p.lost
		}
	}
	r.result.LivePerS, r.result.DeliveriesPerS = ptr(float64(rows[0])/took[0].Seconds()), ptr(float64(rows[1])/took[1].Seconds())
	r.result.DeliveriesRatio = ptr(*r.result.DeliveriesPerS / *r.result.LivePerS)
	return r.node.register(ctx, live)
}
