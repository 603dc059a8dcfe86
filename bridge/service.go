package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"signalbox/message"
	"signalbox/step"
	"signalbox/wire"
)

// Bounds of the API.
const (
	bodyReserve   = 64 << 10        // what a request may not use of max_payload
	pendingMsgs   = 8192            // requests of one endpoint that wait for its handler
	pendingBytes  = 64 << 20        // the same in bytes
	outcomeWithin = 4 * time.Second // the stock client waits 5 s; a later outcome is asked for again by its id
	lagTime       = 2 * time.Second
	lagMessages   = 50_000
)

// service answers the API's subjects. Handlers append or hand on, and never
// wait: the answer comes from the loop.
type service struct {
	*Bridge
	micro   micro.Service
	pending chan pendingAck
	queries chan query
}

// pendingAck is a command on its way into the log, for its failure to be told.
type pendingAck struct {
	future jetstream.PubAckFuture
	key    waitKey
	waiter *waiter
}

// serve registers the micro service: one endpoint a verb.
func (b *Bridge) serve() (*service, error) {
	s := &service{Bridge: b, pending: make(chan pendingAck, pendingMsgs), queries: make(chan query, queryQueue)}
	b.polls.svc = s
	var err error
	s.micro, err = micro.AddService(b.nc, micro.Config{
		Name: "signalbox", Version: semver(b.config.Version), Description: "The register, jobs and roles of the bus",
		Metadata: map[string]string{"instance": b.config.Instance},
	})
	if err != nil {
		return nil, fmt.Errorf("serve the API: %w", err)
	}
	for _, verb := range []string{message.Send, message.Ask, message.Handoff} {
		if err := s.endpoint(messageName, verb, s.compose(verb)); err != nil {
			return nil, err
		}
	}
	for _, m := range b.machines.all {
		var polls map[string]step.Poll
		if p, ok := m.(Poller); ok {
			polls = p.Polls()
		}
		for _, verb := range m.Verbs() {
			handle := micro.HandlerFunc(s.command)
			if poll := polls[verb]; poll != nil {
				handle = s.pollEndpoint(poll)
			}
			if err := s.endpoint(m.Name(), verb, handle); err != nil {
				return nil, err
			}
		}
		for verb, ask := range m.Queries() {
			if err := s.endpoint(m.Name(), verb, s.ask(b.machineQuery(ask))); err != nil {
				return nil, err
			}
		}
	}
	for verb, ask := range b.auditQueries() {
		if err := s.endpoint(auditName, verb, s.ask(ask)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// semver is the program's version as the service protocol wants it.
func semver(v string) string {
	if v == "" || v == "devel" {
		return "0.0.0"
	}
	return v
}

func (s *service) endpoint(machine, verb string, h micro.HandlerFunc) error {
	err := s.micro.AddEndpoint(machine+"_"+verb, h,
		micro.WithEndpointSubject(s.config.Root.Request("*", machine, verb)),
		micro.WithEndpointPendingLimits(pendingMsgs, pendingBytes))
	if err != nil {
		return fmt.Errorf("serve %s.%s: %w", machine, verb, err)
	}
	return nil
}

// admit reads the address of a request and says whether it may be taken now.
func (s *service) admit(r micro.Request) (wire.Address, error) {
	addr, err := s.config.Root.Parse(r.Subject())
	if err != nil {
		return addr, err
	}
	if room := s.nc.MaxPayload() - bodyReserve; int64(len(r.Data())) > room {
		return addr, wire.Errorf(wire.BodyTooLarge, "the body has %d bytes; a request takes %d", len(r.Data()), room).
			WithHint("publish large content as a message and refer to it")
	}
	return addr, s.health.admits()
}

// command appends a command with its body unchanged.
func (s *service) command(r micro.Request) {
	addr, err := s.admit(r)
	if err != nil {
		s.refuse(r, err)
		return
	}
	s.await(r, addr, s.config.Root.Command(addr.From, addr.Machine, addr.Verb), forward(r.Headers()), r.Data(), respondRaw)
}

// compose publishes the message of message.send, ask or handoff.
func (s *service) compose(verb string) micro.HandlerFunc {
	return func(r micro.Request) {
		addr, err := s.admit(r)
		if err != nil {
			s.refuse(r, err)
			return
		}
		draft, err := message.Compose(verb, addr.From, r.Data())
		if err != nil {
			s.refuse(r, err)
			return
		}
		header := forward(r.Headers())
		for name, values := range draft.Header {
			header[name] = values
		}
		respond := s.respondMessage(verb)
		if verb == message.Ask {
			respond = s.respondAsk(addr.From, draft.Wait)
		}
		s.await(r, addr, s.config.Root.To(addr.From, draft.To), header, draft.Body, respond)
	}
}

// forward are the headers of a request that its command carries: all but those
// that JetStream would obey.
func forward(h micro.Headers) wire.Header {
	out := wire.Header{}
	for name, values := range h {
		if len(name) < 5 || name[:5] != "Nats-" {
			out[name] = values
		}
	}
	return out
}

// await appends a message to the log, with a waiter that answers the request
// once its outcome is committed. The waiter is set before the publish, so a
// lost PubAck changes nothing.
func (s *service) await(r micro.Request, addr wire.Address, subject string, h wire.Header, body []byte, respond responder) {
	id := r.Headers().Get(wire.HeaderMsgID)
	switch {
	case id == "":
		id = wire.Once + uuid.NewString()
	case id[:1] == wire.Once || !wire.Visible(id):
		s.refuse(r, wire.Errorf(wire.RequestIDInvalid, "request id %.200q cannot be kept", id).
			WithHint("1 to 128 visible characters, not starting with "+wire.Once))
		return
	}
	h[wire.HeaderRequestID] = []string{id}
	key := keyOf(addr.From, id, subject, h, body)
	one := &waiter{request: r, respond: respond, until: time.Now().Add(outcomeWithin)}
	if !s.waiters.add(key, one) {
		s.refuse(r, wire.Errorf(wire.TooManyRequests, "%d requests wait already", maxWaiters).WithHint("try again"))
		return
	}
	if err := s.config.on(BeforeAppend); err != nil {
		s.log.Error("a command was not appended", "err", err)
		return // it is lost, as it can be on its way; its waiter says so in time
	}
	future, err := s.js.PublishMsgAsync(&nats.Msg{Subject: subject, Header: nats.Header(h), Data: body})
	if err == nil {
		err = s.config.on(AfterAppendLog) // an error: it was appended all the same
	}
	if err != nil {
		s.waiters.fail(key, one, publishError(err))
		return
	}
	select {
	case s.pending <- pendingAck{future: future, key: key, waiter: one}:
	default: // its failure will be told as a time-out
		s.metrics.unwatched.Inc()
	}
}

// watch tells waiters whose command the server refused, in one goroutine, until
// ctx ends.
func (s *service) watch(ctx context.Context) {
	for {
		var p pendingAck
		select {
		case <-ctx.Done():
			return
		case p = <-s.pending:
		}
		select {
		case <-ctx.Done():
			return
		case <-p.future.Ok():
		case err := <-p.future.Err():
			// A lost PubAck is no refusal: the command may be in the log, and
			// its outcome then comes from there.
			if !errors.Is(err, jetstream.ErrAsyncPublishTimeout) && !errors.Is(err, nats.ErrTimeout) {
				s.waiters.fail(p.key, p.waiter, publishError(err))
			}
		}
	}
}

// publishError is what a caller is told when the log did not take a command.
func publishError(err error) *wire.Error {
	if refusedForGood(err) {
		return wire.Errorf(wire.BodyTooLarge, "the log does not take it: %v", err)
	}
	return wire.Errorf(wire.NotReady, "the log did not take it: %v", err).WithHint("try again with the same Nats-Msg-Id")
}

// refuse answers a request that was not appended.
func (s *service) refuse(r micro.Request, err error) {
	refusal, ok := asRefusal(err)
	if !ok {
		s.log.Error("a request failed", "subject", r.Subject(), "err", err)
		refusal = wire.Errorf(wire.Internal, "the request failed; the cause is in the bridge's log")
	}
	s.metrics.refused(refusal.Code)
	s.reply(r, refusal.Code.Status(), refusal.Body())
}

// reply sends an answer: a failure carries the service headers.
func (b *Bridge) reply(r micro.Request, status int, body []byte) {
	var err error
	if status == 0 {
		err = r.Respond(body)
	} else {
		var e struct {
			Error wire.Error `json:"error"`
		}
		text := "failed"
		if json.Unmarshal(body, &e) == nil && e.Error.Code != "" {
			text = e.Error.Error()
		}
		err = r.Error(strconv.Itoa(status), headerText(text), body)
	}
	if errors.Is(err, nats.ErrMaxPayload) {
		large := wire.Errorf(wire.BodyTooLarge, "the reply has %d bytes, more than the server carries", len(body)).
			WithHint("ask for less at once")
		err = r.Error(strconv.Itoa(large.Code.Status()), large.Error(), large.Body())
	}
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		b.metrics.replyFailures.Inc()
		b.log.Warn("a reply was not sent", "subject", r.Subject(), "err", err)
	}
}

// headerText is a text that a header can carry.
func headerText(s string) string {
	b := []byte(s[:min(len(s), 500)])
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = ' '
		}
	}
	return string(b)
}
