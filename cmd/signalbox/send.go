package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"signalbox/cmd/signalbox/config"
	"signalbox/cmd/signalbox/listing"
	"signalbox/message"
	"signalbox/wire"
)

// defaultSender is the id under which the command line writes.
const defaultSender = "cli"

// mail is the body of message.send; what is left out has the bus's default.
type mail struct {
	To            string    `json:"to"`
	Type          wire.Type `json:"type,omitempty"`
	Topic         string    `json:"topic,omitempty"`
	Priority      int       `json:"priority,omitempty"`
	TTLMS         int64     `json:"ttl_ms,omitempty"`
	CorrelationID string    `json:"correlation_id,omitempty"`
	TraceID       string    `json:"trace_id,omitempty"`
}

// request is the mail with its payload, whose bytes stay as they are.
func (m mail) request(payload []byte) ([]byte, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write the request: %w", err)
	}
	if payload != nil {
		raw = slices.Concat(raw[:len(raw)-1], []byte(`,"payload":`), payload, []byte("}"))
	}
	return raw, nil
}

// sending is what the send command is asked.
type sending struct {
	mail
	remote
	ttl    time.Duration
	id     string
	format listing.Format
}

func (a *app) sendCommand() *cobra.Command {
	var s sending
	cmd := &cobra.Command{
		Use: "send TO [BODY]", Short: "Send a message and wait until it is registered",
		Long: `Send a message to an agent (agent:x, or x), a topic (topic:a.b) or the holder of a
role (role:project/kind[/scope]). A BODY that is JSON is sent as it is, any other as a
JSON string. Without BODY, or with "-", it is read from stdin.`,
		Example: `  signalbox send reviewer '{"pr": 12}' --priority 8
  echo "build is red" | signalbox send topic:builds
  signalbox send role:web/lead "please decide" --type request --id decide-12`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage(fmt.Errorf("%s takes TO and perhaps BODY, not %d arguments; quote a body with spaces", cmd.CommandPath(), len(args)))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.send(s, args) },
	}
	a.as = defaultSender
	flags := cmd.Flags()
	flags.Var(checked{&a.as, "agent", agentID}, "as", "sender")
	flags.Var(choice[wire.Type]{&s.Type, types}, "type", "type of message (default event)")
	complete(cmd, "type", types)
	flags.Var(checked{&s.Topic, "topic", topicName}, "topic", "topic, for a message to an agent or a role")
	flags.Var(number[int]{&s.Priority, wire.MinPriority, wire.MaxPriority}, "priority", "1 to 9; 7 and up is urgent (default 5)")
	flags.DurationVar(&s.ttl, "ttl", 0, "time until it expires, 1s to 24h (default 5m, handoff 10m)")
	flags.Var(checked{&s.CorrelationID, "id", visibleID}, "correlation", "correlation id")
	flags.Var(checked{&s.TraceID, "id", visibleID}, "trace", "trace id")
	flags.Var(checked{&s.id, "id", requestID}, "id", "request id: sent again with the same one, it is done once")
	s.remote.flags(cmd)
	output(cmd, &s.format, listing.Table, listing.JSON, listing.JSONL)
	return cmd
}

var requestID = checkOf(func(s string) bool { return wire.Visible(s) && s[:1] != wire.Once },
	"a request id is 1 to 128 visible characters, the first not "+wire.Once)

func (a *app) send(s sending, args []string) error {
	if err := recipient(args[0]); err != nil {
		return usage(err)
	}
	if err := s.remote.check(); err != nil {
		return err
	}
	if s.ttl != 0 && (s.ttl < wire.MinTTL || s.ttl > wire.MaxTTL) {
		return usage(fmt.Errorf("--ttl %s is not between %s and %s", s.ttl, wire.MinTTL, wire.MaxTTL))
	}
	c, err := a.load(nil)
	if err != nil {
		return err
	}
	s.To, s.TTLMS = args[0], s.ttl.Milliseconds()
	payload, err := body(args[1:], c)
	if err != nil {
		return err
	}
	msg := nats.NewMsg(wire.Root(c.Bus.Root).Request(a.as, "message", message.Send))
	if msg.Data, err = s.mail.request(payload); err != nil {
		return err
	}
	if s.id != "" {
		msg.Header.Set(wire.HeaderMsgID, s.id)
	}
	reply, err := s.remote.request(c, msg)
	if err != nil {
		return err
	}
	return a.printSent(reply, s.format)
}

func (a *app) printSent(reply []byte, format listing.Format) error {
	var sent message.Accepted
	if err := json.Unmarshal(reply, &sent); err != nil || sent.ID == 0 {
		return errors.New("the answer is not that of a signalbox: " + listing.Escape(bodyText(reply)))
	}
	if format != listing.Table {
		return listing.Object(a.stdout, format, json.RawMessage(reply))
	}
	fmt.Fprintf(a.stdout, "id          %d\nmessage_id  %s\nseq         %d\n", sent.ID, listing.Escape(sent.MessageID), sent.Seq)
	return nil
}

// body is the payload that the command line or stdin gives, as JSON; none is
// nil.
func body(args []string, c config.Config) ([]byte, error) {
	var text []byte
	if len(args) > 0 && args[0] != "-" {
		text = []byte(args[0])
	} else if len(args) > 0 || !term.IsTerminal(int(os.Stdin.Fd())) {
		var err error
		most := int64(c.NATS.Embedded.MaxPayload)
		if text, err = io.ReadAll(io.LimitReader(os.Stdin, most+1)); err != nil {
			return nil, fmt.Errorf("read the body: %w", err)
		}
		if int64(len(text)) > most {
			return nil, usage(fmt.Errorf("the body on stdin has more than the %d bytes that a message may have", most))
		}
		text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r")) // of the line that echo ends
	}
	switch {
	case len(text) == 0:
		return nil, nil
	case !utf8.Valid(text):
		return nil, usage(errors.New("the body is not UTF-8, which JSON must be; publish bytes as they are with \"nats pub\""))
	case json.Valid(text):
		return text, nil
	}
	return json.Marshal(string(text))
}
