// Agent is an agent in Go with nothing but nats.go: it registers, beats,
// fetches, works and acks.
//
//	go run ./examples/agent ID [MESSAGES]
//
// It stops after that many messages; without, it goes on until it is stopped.
// NATS_URL says where the bus is.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		stop()
		os.Exit(1)
	}
}

// agent is a connection with an id.
type agent struct {
	nc *nats.Conn
	id string
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) < 1 {
		return errors.New("usage: agent ID [MESSAGES]")
	}
	most := 0
	if len(args) > 1 {
		var err error
		if most, err = strconv.Atoi(args[1]); err != nil {
			return fmt.Errorf("MESSAGES: %w", err)
		}
	}
	url := os.Getenv("NATS_URL")
	if url == "" {
		url = nats.DefaultURL
	}
	nc, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	a := agent{nc: nc, id: args[0]}

	// Whatever waits for this id is delivered from now on, and what a former run
	// fetched and did not ack comes again.
	var registered struct {
		Generation int64 `json:"generation"`
	}
	if err := a.ask(ctx, "agents.register", map[string]any{"cli": "other", "topics": []string{"work"}, "pid": os.Getpid()}, &registered); err != nil {
		return err
	}
	beating, rest := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { rest(); <-ended }()
	go func() { defer close(ended); a.beat(beating, registered.Generation) }()

	for done := 0; most == 0 || done < most; done++ {
		m, err := a.next(ctx)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "working on %d from %s: %s\n", m.ID, m.From, m.Body); err != nil {
			return err
		}
		// Only what is acked is done: a crash before this brings it again.
		if err := a.ask(ctx, "inbox.ack", map[string]any{"ids": []int64{m.ID}}, nil); err != nil {
			return err
		}
	}
	return a.ask(ctx, "agents.deregister", registered, nil)
}

// beat says every 5 s that the agent lives; a lease runs for 30 s. With the
// generation in it, a heartbeat of a run that was replaced counts for nothing.
func (a agent) beat(ctx context.Context, generation int64) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// A heartbeat that is lost is followed by the next.
		_ = a.nc.Publish("bus.hb."+a.id, fmt.Appendf(nil, `{"generation":%d}`, generation))
	}
}

// message is what this agent needs of a register row.
type message struct {
	ID   int64  `json:"id"`
	From string `json:"from"`
	Body string `json:"body"`
}

// next waits for the next message.
func (a agent) next(ctx context.Context) (message, error) {
	for {
		var fetched struct {
			Messages []message `json:"messages"`
		}
		err := a.ask(ctx, "inbox.fetch", map[string]any{"max_messages": 1, "wait_ms": 30000}, &fetched)
		switch {
		case err != nil:
			return message{}, err
		case len(fetched.Messages) > 0:
			return fetched.Messages[0], nil
		}
	}
}

// ask sends a request and reads its answer, again and again while the bus is
// away; a refusal is an error. An ack or a registration does no harm twice.
func (a agent) ask(ctx context.Context, verb string, body, answer any) error {
	retry := backoff.WithContext(backoff.NewExponentialBackOff(backoff.WithMaxElapsedTime(0)), ctx)
	return backoff.Retry(func() error { return a.once(ctx, verb, body, answer) }, retry)
}

func (a agent) once(ctx context.Context, verb string, body, answer any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return backoff.Permanent(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	reply, err := a.nc.RequestWithContext(ctx, "bus.api."+a.id+"."+verb, raw)
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	if text := reply.Header.Get("Nats-Service-Error"); text != "" {
		err := fmt.Errorf("%s: %s", verb, text)
		if reply.Header.Get("Nats-Service-Error-Code") == "503" { // not ready: ask again
			return err
		}
		return backoff.Permanent(err)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(reply.Data, answer)
}
