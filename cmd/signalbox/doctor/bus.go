package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/bridge"
)

// metaStreamID is the key in a stream's metadata under which the bridge keeps
// the id that it gave the stream.
const metaStreamID = "signalbox.stream_id"

// busWithin bounds what is asked of the NATS server.
const busWithin = 10 * time.Second

// bus looks at the server and its streams.
func (e *examination) bus(ctx context.Context) {
	const check = "nats"
	if !e.running && !e.Named {
		e.ok(check, "not asked: the embedded server runs only with the bridge")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, busWithin)
	defer cancel()
	nc, err := e.Connect()
	if err != nil {
		e.fail(check, "see whether the server runs and may be reached from here", "%v", err)
		return
	}
	defer nc.Close()
	trip, err := nc.RTT()
	if err != nil {
		e.fail(check, "see whether the server is overloaded", "the server at %s does not answer: %v", nc.ConnectedUrlRedacted(), err)
		return
	}
	e.ok(check, "%s, version %s, %s away", nc.ConnectedUrlRedacted(), nc.ConnectedServerVersion(), trip.Round(time.Microsecond))
	js, err := bridge.JetStream(nc)
	if err != nil {
		e.fail("stream", "see the server's log", "%v", err)
		return
	}
	// The cursors as they are now, and before the streams are asked: so a
	// cursor past its stream's end can only mean that the log went back.
	if e.reader != nil {
		if e.cursors, err = e.reader.Cursors(ctx); err != nil {
			e.fail("stream", "see what is said of the register", "%v", err)
			return
		}
	}
	e.log(ctx, js, nc)
	e.taps(ctx, js)
}

// log looks at the stream that is the log of the bus, and at the server's clock.
func (e *examination) log(ctx context.Context, js jetstream.JetStream, nc *nats.Conn) {
	name := e.Config.Bus.Stream
	info := e.stream(ctx, js, name)
	if info == nil {
		return
	}
	if e.ours(info) {
		e.compare(info)
	}
	trip, err := nc.RTT()
	if err != nil || info.TimeStamp.IsZero() {
		return
	}
	// The answer was made before now, by at most what has gone by since.
	if off := time.Until(info.TimeStamp); off > clockSlack+trip || off < -clockSlack-busWithin {
		e.warn("clock", "set both machines' clocks (NTP)", "the NATS server's clock differs from this machine's by %s", off.Round(time.Millisecond))
	}
}

// stream is a stream as it is now; nil where it cannot be had.
func (e *examination) stream(ctx context.Context, js jetstream.JetStream, name string) *jetstream.StreamInfo {
	s, err := js.Stream(ctx, name)
	check := "stream " + name
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && !e.running:
		e.warn(check, `start "signalbox serve", which makes it`, "it does not exist")
		return nil
	case err != nil:
		e.fail(check, "see the bridge's log; JetStream must be enabled and the stream be there", "%v", err)
		return nil
	}
	return s.CachedInfo()
}

// ours reports whether the bridge of this register reads the stream.
func (e *examination) ours(info *jetstream.StreamInfo) bool {
	check := "stream " + info.Config.Name
	id, cursor := info.Config.Metadata[metaStreamID], e.cursors[info.Config.Name]
	switch {
	case id == "":
		e.fail(check, "rename or delete it, or choose another name with bus.stream", "it was not made by signalbox")
		return false
	case e.reader != nil && cursor.StreamID != "" && cursor.StreamID != id:
		e.warn(check, "if this is the right server, the bridge goes on with a new incarnation by itself", "it is another stream than the one that the register has read")
		return false
	}
	return true
}

// compare says how the stream and the register's cursor stand to each other.
func (e *examination) compare(info *jetstream.StreamInfo) {
	check := "stream " + info.Config.Name
	s, cursor := info.State, e.cursors[info.Config.Name]
	text := fmt.Sprintf("messages %d to %d (%s), registered up to %d", s.FirstSeq, s.LastSeq, bytes(int64(s.Bytes)), cursor.Seq)
	switch {
	case e.reader == nil || cursor.Stream == "":
		e.ok(check, "messages %d to %d (%s), not registered yet", s.FirstSeq, s.LastSeq, bytes(int64(s.Bytes)))
	case s.LastSeq < cursor.Seq:
		e.warn(check, "nothing is lost that is registered; the bridge opens a new incarnation and says so", "%s: the log went back", text)
	case s.FirstSeq > cursor.Seq+1:
		e.warn(check, "keep the bridge running, or raise bus.max_age and bus.max_bytes", "%s: retention removed messages before they were registered", text)
	case e.running && s.LastSeq > cursor.Seq+foldLag:
		e.warn(check, "see the bridge's log and the disk's load; requests are refused until it has caught up", "%s: %d behind", text, s.LastSeq-cursor.Seq)
	default:
		behind := uint64(0)
		if s.LastSeq > cursor.Seq {
			behind = s.LastSeq - cursor.Seq
		}
		e.ok(check, "%s, %d behind", text, behind)
	}
}

// taps looks at the streams of other applications' messages.
func (e *examination) taps(ctx context.Context, js jetstream.JetStream) {
	if len(e.Config.Bus.TapSubjects()) > 0 {
		if info := e.stream(ctx, js, e.Config.Bus.TapStream()); info != nil && e.ours(info) {
			e.compare(info)
		}
	}
	for _, name := range e.Config.Bus.TapStreams() {
		info := e.stream(ctx, js, name)
		switch {
		case info == nil:
		case info.Config.Retention != jetstream.LimitsPolicy:
			e.fail("stream "+name, "tap its subjects instead, or give it limits retention", "its retention is %s, which loses messages before they are registered", info.Config.Retention)
		default:
			e.compare(info)
		}
	}
}

// health asks the running bridge how it is.
func (e *examination) health(ctx context.Context) {
	const check = "health"
	address := e.Config.HTTP.Listen
	_, port, err := net.SplitHostPort(address)
	switch {
	case address == "":
		e.ok(check, "not asked: http.listen is off")
		return
	case !e.running:
		e.ok(check, "not asked: no bridge runs here")
		return
	case err != nil || port == "0":
		e.ok(check, "not asked: the system chose the port of http.listen")
		return
	}
	url := "http://" + address + "/healthz"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		e.fail(check, "set http.listen to host:port", "%v", err)
		return
	}
	response, err := e.http.Do(request)
	if err != nil {
		e.warn(check, "if serve was given another http.listen, give doctor the same with --set http.listen=…; otherwise see its log", "the bridge does not answer: %v", err)
		return
	}
	defer response.Body.Close()
	var body struct {
		Status string            `json:"status"`
		Red    map[string]string `json:"red"`
	}
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil || body.Status == "" {
		e.warn(check, "give another http.listen to one of the two", "what answers at %s is no signalbox", url)
		return
	}
	if response.StatusCode == http.StatusOK {
		e.ok(check, "%s says %s", url, body.Status)
		return
	}
	var red []string
	for _, part := range slices.Sorted(maps.Keys(body.Red)) {
		red = append(red, part+": "+body.Red[part])
	}
	e.fail(check, "the runbook has a paragraph for each red part", "%s", strings.Join(red, "; "))
}
