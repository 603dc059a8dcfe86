package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"signalbox/step"
	"signalbox/wire"
)

// Bounds of the questions that the bridge asks agents.
const (
	rpcQueue  = 4096 // that wait to be asked
	rpcAtOnce = 256  // that wait for an answer
)

// outRequest is a question that a machine wants asked.
type outRequest struct {
	machine string
	step.Request
}

// rpc asks agents what machines want to know, after the commit, and puts the
// outcomes into the log: rules learn of the outside world only from there.
type rpc struct {
	*Bridge
	queue chan outRequest
}

func newRPC(b *Bridge) *rpc { return &rpc{Bridge: b, queue: make(chan outRequest, rpcQueue)} }

// ask takes the questions of a committed batch. One for which there is no
// room has the outcome that it was not asked.
func (r *rpc) ask(list []outRequest) {
	for _, q := range list {
		select {
		case r.queue <- q:
		default:
			r.metrics.unasked.Inc()
			r.outcome(q, fmt.Errorf("%d questions wait already", rpcQueue))
		}
	}
}

// run asks until ctx ends. What has no answer by then has no outcome, as after
// a crash.
func (r *rpc) run(ctx context.Context) {
	var asking errgroup.Group
	asking.SetLimit(rpcAtOnce)
	for {
		select {
		case <-ctx.Done():
			_ = asking.Wait() // they end with ctx and have no error
			return
		case q := <-r.queue:
			asking.Go(func() error {
				if err := r.one(ctx, q); ctx.Err() == nil {
					r.outcome(q, err)
				}
				return nil
			})
		}
	}
}

// one asks once: any answer that is no error will do.
func (r *rpc) one(ctx context.Context, q outRequest) error {
	body, err := json.Marshal(q.Body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	reply, err := r.nc.RequestWithContext(ctx, r.config.Root.RPC(q.Agent, q.Verb), body)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return errors.New("nobody listens")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s", q.Timeout)
	case err != nil:
		return err
	}
	if text := reply.Header.Get(wire.HeaderError); text != "" || reply.Header.Get(wire.HeaderErrorCode) != "" {
		return fmt.Errorf("it answered with an error: %.200s", text)
	}
	return nil
}

// outcome appends the outcome of a question.
func (r *rpc) outcome(q outRequest, err error) {
	body := map[string]any{}
	maps.Copy(body, q.Context)
	body["reachable"] = err == nil
	if err != nil {
		body["error"] = err.Error()
	}
	if err := r.appendCommand(q.machine, q.Outcome, body); err != nil {
		r.log.Warn("the outcome of a question was not put into the log", "agent", q.Agent, "verb", q.Verb, "err", err)
	}
}
