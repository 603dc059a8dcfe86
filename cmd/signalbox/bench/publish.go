package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
)

// order is what a publisher is told to publish, one line of JSON.
type order struct {
	Phase     int     `json:"phase"`
	Publisher int     `json:"publisher"`
	Count     int     `json:"count"`
	Size      int     `json:"size"` // bytes of a body
	Rate      float64 `json:"rate"` // messages a second; 0 for as fast as the server takes them
}

// published is a publisher's answer: what left it, or why not.
type published struct {
	Sent  int    `json:"sent"`
	Error string `json:"error,omitempty"`
}

// flushWithin bounds how long a publisher waits for the server to have read
// what it sent.
const flushWithin = time.Minute

// Publish is the process of a publisher: it reads orders from in until that
// ends, publishes plainly (no PubAck is asked for), and answers each on out when
// the server has read all of it.
func Publish(ctx context.Context, url string, in io.Reader, out io.Writer) error {
	nc, err := nats.Connect(url, nats.Name("signalbox bench"), nats.NoReconnect())
	if err != nil {
		return fmt.Errorf("connect to NATS at %s: %w", url, err)
	}
	defer nc.Close()
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	for ctx.Err() == nil {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read an order: %w", err)
		}
		sent, err := o.publish(ctx, nc)
		answer := published{Sent: sent}
		if err != nil {
			answer.Error = err.Error()
		}
		if err := answers.Encode(answer); err != nil {
			return fmt.Errorf("answer an order: %w", err)
		}
	}
	return ctx.Err()
}

func (o order) publish(ctx context.Context, nc *nats.Conn) (sent int, err error) {
	l := newLoad(o.Phase, o.Publisher, o.Size)
	correlation, trace := []string{""}, []string{""}
	msg := &nats.Msg{Header: nats.Header{headerCorrelation: correlation, headerTrace: trace}}
	one := func() error {
		letter := l.letter(sent, msg.Data)
		correlation[0], trace[0] = letter.correlation, letter.trace
		msg.Subject, msg.Data = letter.subject, letter.body
		if err := nc.PublishMsg(msg); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		sent++
		return nil
	}
	if o.Rate > 0 {
		err = o.paced(ctx, &sent, one)
	} else {
		for sent < o.Count && err == nil && ctx.Err() == nil {
			err = one()
		}
	}
	return sent, errors.Join(err, ctx.Err(), nc.FlushTimeout(flushWithin))
}

// paced publishes at a rate, in a burst each millisecond.
func (o order) paced(ctx context.Context, sent *int, one func() error) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for start := time.Now(); *sent < o.Count; {
		select {
		case <-ctx.Done():
			return nil // the caller says so
		case <-tick.C:
		}
		due := min(o.Count, int(time.Since(start).Seconds()*o.Rate))
		for *sent < due {
			if err := one(); err != nil {
				return err
			}
		}
	}
	return nil
}
