package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"signalbox/cmd/signalbox/config"
	"signalbox/cmd/signalbox/listing"
	"signalbox/cmd/signalbox/node"
	"signalbox/wire"
)

// remote is how a command reaches the bus.
type remote struct {
	server  string
	timeout time.Duration
}

func (r *remote) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.server, "server", "", "NATS server (default $NATS_URL, nats.url of the configuration, or the file nats.url in the data directory)")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 5*time.Second, "how long to wait for an answer")
}

func (r *remote) check() error {
	if r.timeout <= 0 {
		return usage(fmt.Errorf("--timeout %s is no time to wait", r.timeout))
	}
	return nil
}

// dial connects to the first server that is named: by the flag, by $NATS_URL,
// by the configuration, by the running bridge in its data directory; otherwise
// to where the embedded server listens by default.
func (r *remote) dial(c config.Config) (*nats.Conn, error) {
	n := c.NATS
	named := r.server
	if named == "" {
		named = os.Getenv("NATS_URL")
	}
	switch {
	case named != "":
		n.URL, n.Context = named, ""
	case !n.External():
		n.URL = "nats://" + n.Embedded.Listen
		text, err := os.ReadFile(filepath.Join(c.DataDir, "nats.url"))
		if err == nil && strings.TrimSpace(string(text)) != "" {
			n.URL = strings.TrimSpace(string(text))
		}
	}
	return node.Connect(n, nats.Name("signalbox cli"), nats.Timeout(r.timeout), nats.NoReconnect())
}

// request sends a request to the bridge and gives its answer; a refusal is a
// *refusedError.
func (r *remote) request(c config.Config, msg *nats.Msg) ([]byte, error) {
	nc, err := r.dial(c)
	if err != nil {
		return nil, fmt.Errorf("%w; is \"signalbox serve\" running?", err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	reply, err := nc.RequestMsgWithContext(ctx, msg)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("no bridge answers at %s; is \"signalbox serve\" running, with the same bus.root?", nc.ConnectedUrlRedacted())
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("no answer within %s; whether it was done is unknown, and trying again with the same --id does nothing twice", r.timeout)
	case err != nil:
		return nil, fmt.Errorf("request: %w", err)
	}
	return reply.Data, codedRefusal(refusalOf(reply))
}

// codedRefusal gives a refusal its exit code.
func codedRefusal(err error) error {
	var refused *refusedError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.refusal.Code.Status() {
	case http.StatusBadRequest:
		return usage(err)
	case http.StatusNotFound:
		return &exitError{exitNotFound, err}
	}
	return err
}

// refusedError is what the bridge refused, with the hint in a line of its own.
type refusedError struct{ refusal *wire.Error }

func (e *refusedError) Error() string {
	text := listing.Escape(e.refusal.Error())
	if e.refusal.Hint != "" {
		text += "\nhint: " + listing.Escape(e.refusal.Hint)
	}
	return text
}

func (e *refusedError) Unwrap() error { return e.refusal }

func refusalOf(reply *nats.Msg) error {
	text := reply.Header.Get(wire.HeaderError)
	if text == "" && reply.Header.Get(wire.HeaderErrorCode) == "" {
		return nil
	}
	var body struct {
		Error *wire.Error `json:"error"`
	}
	if json.Unmarshal(reply.Data, &body) != nil || body.Error == nil {
		return errors.New(listing.Escape(text))
	}
	return &refusedError{body.Error}
}
