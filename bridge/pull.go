package bridge

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Pull requests (ADR-13). Two at a time keep the stream delivering while the
// messages of one are folded.
const (
	pullMessages  = 16384
	pullBytes     = 6 << 20
	pullExpires   = 30 * time.Second
	pullHeartbeat = 5 * time.Second
	pullIdle      = time.Minute // after which the server forgets a consumer that nobody pulls from
)

const apiPrefix = "$JS.API."

// pull reads a stream in order through an ephemeral consumer of its own, with
// plain pull requests. A consumer of the client library takes a message that
// has no body and a header "Status" for word of the server and never gets past
// it, and anybody may publish one; the server's word is what has no reply
// subject. It also renews itself in silence, where this one ends, so that the
// log is checked before it is read on.
type pull struct {
	nc        *nats.Conn
	subject   string // of the next request
	request   []byte
	sub       *nats.Subscription
	arrived   chan *nats.Msg
	silent    *time.Timer
	owed      int    // messages that open requests may still bring
	delivered uint64 // the consumer's number of the last message
}

// newPull reads the stream from seq on.
func newPull(ctx context.Context, nc *nats.Conn, stream jetstream.Stream, seq uint64) (*pull, error) {
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: seq,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: pullIdle,
	})
	if err != nil {
		return nil, err
	}
	info := consumer.CachedInfo()
	p := &pull{nc: nc, subject: apiPrefix + "CONSUMER.MSG.NEXT." + info.Stream + "." + info.Name,
		// It holds all that two requests can bring and what the server says
		// beside, so the client never drops any.
		arrived: make(chan *nats.Msg, 2*pullMessages+64), silent: time.NewTimer(2 * pullHeartbeat)}
	p.request, err = json.Marshal(map[string]any{"batch": pullMessages, "expires": pullExpires, "idle_heartbeat": pullHeartbeat,
		"max_bytes": max(pullBytes, int(nc.MaxPayload())+64<<10)})
	if err != nil {
		return nil, err
	}
	p.sub, err = nc.ChanSubscribe(nc.NewInbox(), p.arrived)
	return p, err
}

// close ends the consumer as far as the connection allows; the server forgets
// it by itself otherwise.
func (p *pull) close() {
	p.silent.Stop()
	_ = p.sub.Unsubscribe()
	_ = p.nc.Publish(strings.Replace(p.subject, "CONSUMER.MSG.NEXT", "CONSUMER.DELETE", 1), nil)
}

// errOutOfOrder means that the consumer skipped or repeated a message.
var errOutOfOrder = errors.New("its consumer's messages are out of order")

// next is the next message. Any error but that of ctx means that the log must
// be checked.
func (p *pull) next(ctx context.Context) (*nats.Msg, *nats.MsgMetadata, error) {
	for {
		for p.owed <= pullMessages/2 {
			if err := p.nc.PublishRequest(p.subject, p.sub.Subject, p.request); err != nil {
				return nil, nil, err
			}
			p.owed += pullMessages
		}
		var m *nats.Msg
		select {
		case m = <-p.arrived: // most often one waits already
		default:
			p.silent.Reset(2 * pullHeartbeat)
			select {
			case m = <-p.arrived:
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			case <-p.silent.C:
				return nil, nil, fmt.Errorf("nothing came from its consumer for %s", 2*pullHeartbeat)
			}
		}
		if m.Reply != "" {
			p.owed--
			meta, err := m.Metadata()
			if err != nil {
				return nil, nil, err
			}
			if p.delivered++; meta.Sequence.Consumer != p.delivered {
				return nil, nil, errOutOfOrder
			}
			return m, meta, nil
		}
		unmet, err := pullEnded(m.Header)
		if err != nil {
			return nil, nil, err
		}
		p.owed -= unmet
	}
}

// pullEnded reads the server's word on a request: how many messages it will
// not bring any more, or why the consumer cannot go on. A request ends when it
// is met, when its time is over, or when the next message would exceed its
// bytes; the server then says what is left of it.
func pullEnded(h nats.Header) (int, error) {
	status, text, left := h.Get("Status"), h.Get("Description"), h.Get("Nats-Pending-Messages")
	switch {
	case status == "100": // a heartbeat
		return 0, nil
	case left != "" && text != "Server Shutdown" && (status == "408" || status == "409"):
		return strconv.Atoi(left)
	}
	return 0, fmt.Errorf("its consumer ended: %s %s", status, text)
}

// storedMsg is a message as the stream keeps it.
type storedMsg struct {
	subject string
	seq     uint64
	at      time.Time
	header  nats.Header // nil where the header block is malformed
	data    []byte
}

// errNoMessage means that the stream does not have what was asked for.
var errNoMessage = errors.New("the stream does not have the message")

// stored asks a stream for the message at seq, or for the first at or behind
// it. A malformed header block, which anybody may publish, is no reason not to
// get the message.
func stored(ctx context.Context, nc *nats.Conn, stream string, seq uint64, orNext bool) (storedMsg, error) {
	ask := map[string]any{"seq": seq}
	if orNext {
		ask["next_by_subj"] = ">"
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return storedMsg{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, apiPrefix+"STREAM.MSG.GET."+stream, body)
	if err != nil {
		return storedMsg{}, fmt.Errorf("stream %s: message %d: %w", stream, seq, err)
	}
	var r struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  string    `json:"hdrs"`
			Data    string    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &r); err != nil {
		return storedMsg{}, fmt.Errorf("stream %s: message %d: %w", stream, seq, err)
	}
	if r.Error != nil {
		if r.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return storedMsg{}, errNoMessage
		}
		return storedMsg{}, fmt.Errorf("stream %s: message %d: %w", stream, seq, r.Error)
	}
	m := storedMsg{subject: r.Message.Subject, seq: r.Message.Seq, at: r.Message.Time}
	header, err := base64.StdEncoding.DecodeString(r.Message.Header)
	if err != nil {
		return m, fmt.Errorf("stream %s: message %d: %w", stream, seq, err)
	}
	if m.data, err = base64.StdEncoding.DecodeString(r.Message.Data); err != nil {
		return m, fmt.Errorf("stream %s: message %d: %w", stream, seq, err)
	}
	if len(header) > 0 {
		if m.header, err = nats.DecodeHeadersMsg(header); err != nil {
			m.header = nil // as the client delivers such a message
		}
	}
	return m, nil
}
