package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"

	"golang.org/x/sync/errgroup"
)

// PublishCommand is the hidden command that runs Publish; its one argument is
// the address of the server.
const PublishCommand = "bench-publish"

// publisher is a process that publishes.
type publisher struct {
	*process
	in      io.WriteCloser
	orders  *json.Encoder
	answers *json.Decoder
}

func startPublisher(ctx context.Context, program, url string) (*publisher, error) {
	p := &publisher{}
	var err error
	p.process, err = start(ctx, "a publisher", program, []string{PublishCommand, url}, func(cmd *exec.Cmd) error {
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		out, err := cmd.StdoutPipe()
		p.in, p.orders, p.answers = in, json.NewEncoder(in), json.NewDecoder(out)
		return err
	})
	return p, err
}

// publish gives an order and waits until it is done. When the publisher's
// process ends, so does the wait.
func (p *publisher) publish(o order) error {
	if err := p.orders.Encode(o); err != nil {
		return errors.Join(fmt.Errorf("a publisher takes no order: %w", err), p.check())
	}
	var answer published
	if err := p.answers.Decode(&answer); err != nil {
		return errors.Join(fmt.Errorf("a publisher does not answer: %w", err), p.check())
	}
	if answer.Error != "" {
		return fmt.Errorf("a publisher stopped after %d of %d messages: %s", answer.Sent, o.Count, answer.Error)
	}
	return nil
}

// stop ends the publisher with its orders.
func (p *publisher) stop() error {
	return p.end(func() { _ = p.in.Close() }) // fails when the process has ended by itself
}

// publishers share what is to be published.
type publishers []*publisher

func startPublishers(ctx context.Context, n int, program, url string) (publishers, error) {
	var list publishers
	for range n {
		p, err := startPublisher(ctx, program, url)
		if err != nil {
			return nil, errors.Join(err, list.stop())
		}
		list = append(list, p)
	}
	return list, nil
}

// counts is how many of count messages each publisher has.
func (list publishers) counts(count int) []int {
	parts := make([]int, len(list))
	for i := range parts {
		parts[i] = count * (i + 1) / len(list)
		if i > 0 {
			parts[i] -= count * i / len(list)
		}
	}
	return parts
}

// publish gives each publisher its part of an order and waits for all.
func (list publishers) publish(o order) error {
	var all errgroup.Group
	for i, n := range list.counts(o.Count) {
		part := o
		part.Publisher, part.Count, part.Rate = i, n, o.Rate/float64(len(list))
		all.Go(func() error { return list[i].publish(part) })
	}
	return all.Wait()
}

func (list publishers) stop() error {
	var errs []error
	for _, p := range list {
		errs = append(errs, p.stop())
	}
	return errors.Join(errs...)
}
