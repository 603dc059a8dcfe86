//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

// load is what a process of publishers does until its input ends, or until
// Plain messages are sent.
//
// How rows are accounted for. Each acknowledged publish is told to the story
// under its Nats-Msg-Id, which the register has as message_id. A worker of
// Attempts never publishes an id twice: when no PubAck came it tries the same
// content under a new id, so that a second row of an id is a fault of the bus
// and never of the worker. A worker of Repeats tries again under the same id,
// as publishers do; JetStream remembers ids for longer than a restart takes, so
// there too a second row is a fault. A repeated request is another row by
// design, but has one effect and the first outcome: there the answers count,
// which must all name one row, and the outcomes, of which there must be one.
type load struct {
	URL      string
	Attempts int  // workers
	Repeats  int  // workers
	Commands int  // workers that publish commands of a machine that there is not
	Requests int  // workers of message.send
	Size     int  // of the bodies, about
	Plain    int  // plain publishes, each with its own subject and id; -1 for without end
	Rate     int  // most messages a second of each worker; 0 for as many as it can
	OneCore  bool // run on the first core only
}

// ackWithin bounds what a worker waits before it tries again.
const ackWithin = 700 * time.Millisecond

func playLoad(args []string) error {
	var l load
	if err := json.Unmarshal([]byte(args[0]), &l); err != nil {
		return err
	}
	if l.OneCore && os.Getenv("E2E_PINNED") == "" {
		return pin()
	}
	nc, err := nats.Connect(l.URL, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	w := &worker{load: l, nc: nc, js: js, ctx: ctx, out: bufio.NewWriter(os.Stdout)}
	// Its recipient is owed nothing, and its senders need not hear that there is none.
	if err := nc.Publish("bus.cmd.sink.agents.register", []byte(`{"delivery":"live","heartbeat_ttl_ms":3600000}`)); err != nil {
		return err
	}
	if l.Plain != 0 {
		return w.plain()
	}
	var all sync.WaitGroup
	spawn := func(n int, name string, do func(name string, n int)) {
		for i := range n {
			all.Go(func() { w.pace(name+strconv.Itoa(i), do) })
		}
	}
	spawn(l.Attempts, "attempt", w.attempts)
	spawn(l.Repeats, "repeat", w.repeats)
	spawn(l.Commands, "command", w.commands)
	spawn(l.Requests, "request", w.requests)
	all.Wait()
	w.say("finished")
	return nil
}

// pin starts the same process anew on one core: the affinity of a thread passes
// on to what it executes.
func pin() error {
	runtime.LockOSThread()
	var one unix.CPUSet
	one.Set(0)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("one core: %w", err)
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), "E2E_PINNED=1"))
}

type worker struct {
	load
	nc  *nats.Conn
	js  jetstream.JetStream
	ctx context.Context //nolint:containedctx // the life of the process
	mu  sync.Mutex      // guards out
	out *bufio.Writer
}

// say tells the story, at once: what it is told must be true should it look now.
func (w *worker) say(words ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(w.out, strings.Join(words, " "))
	_ = w.out.Flush()
}

func body(id string, size int) []byte {
	return fmt.Appendf(nil, `{"id":%q,"fill":%q}`, id, strings.Repeat("x", size))
}

// publish publishes once with an id, and waits for the PubAck.
func (w *worker) publish(subject, id string) error {
	ctx, cancel := context.WithTimeout(w.ctx, ackWithin)
	defer cancel()
	// The client's own retry follows only on "no responders": then nobody has
	// got the message.
	_, err := w.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: nats.Header{"Nats-Msg-Id": {id}}, Data: body(id, w.Size)})
	return err
}

// pace has a worker do one thing after the other until the end.
func (w *worker) pace(name string, do func(name string, n int)) {
	every := time.Nanosecond
	if w.Rate > 0 {
		every = time.Second / time.Duration(w.Rate)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; w.ctx.Err() == nil; n++ {
		do(name, n)
		if w.Rate > 0 {
			<-tick.C
		}
	}
}

func (w *worker) attempts(name string, n int) {
	for attempt := 1; w.ctx.Err() == nil; attempt++ {
		id := fmt.Sprintf("%s-%d-%d", name, n, attempt)
		if w.publish("bus.msg."+name+".agent.sink", id) == nil {
			w.say("acked", id)
			return
		}
	}
}

func (w *worker) repeats(name string, n int) { w.retried("bus.msg."+name+".agent.sink", name, n) }

func (w *worker) commands(name string, n int) { w.retried("bus.cmd."+name+".nosuch.verb", name, n) }

func (w *worker) retried(subject, name string, n int) {
	id := fmt.Sprintf("%s-%d", name, n)
	for w.ctx.Err() == nil {
		if w.publish(subject, id) == nil {
			w.say("acked", id)
			return
		}
	}
}

func (w *worker) requests(name string, n int) {
	id := fmt.Sprintf("%s-%d", name, n)
	msg := &nats.Msg{Subject: "bus.api." + name + ".message.send", Header: nats.Header{"Nats-Msg-Id": {id}},
		Data: fmt.Appendf(nil, `{"to":"sink","payload":{"id":%q}}`, id)}
	for w.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
		reply, err := w.nc.RequestMsgWithContext(ctx, msg)
		cancel()
		if err != nil {
			continue
		}
		var a struct {
			ID    int64
			Error struct{ Code string }
		}
		if err := json.Unmarshal(reply.Data, &a); err != nil {
			a.Error.Code = "NO_JSON"
		}
		if a.Error.Code == "" {
			w.say("answered", id, strconv.FormatInt(a.ID, 10))
			return
		}
		w.say("refused", id, a.Error.Code)
		select { // a bridge that refuses is not to be flooded
		case <-w.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// plain publishes without waiting for anything, as fast as the server reads.
func (w *worker) plain() error {
	n := 0
	for ; n != w.Plain && w.ctx.Err() == nil; n++ {
		id := fmt.Sprintf("plain-%d-%d", os.Getpid(), n)
		err := w.nc.PublishMsg(&nats.Msg{Subject: fmt.Sprintf("bus.msg.flood%d.agent.sink", n), Header: nats.Header{"Nats-Msg-Id": {id}}, Data: body(id, w.Size)})
		if err != nil {
			return err
		}
	}
	if err := w.nc.FlushTimeout(time.Minute); err != nil {
		return err
	}
	w.say("sent", strconv.Itoa(n))
	return nil
}

// publishers is such a process as its story sees it.
type publishers struct {
	*process
	in io.WriteCloser

	acked    map[string]int // by message id, how often it was acknowledged
	answered map[string]map[string]bool
	refused  map[string]int // by code
	sent     atomic.Int64
	latest   atomic.Int64 // acknowledged and answered so far
}

// startLoad starts it. What it tells is read by the story after finish.
func startLoad(t *testing.T, l load) *publishers {
	t.Helper()
	raw, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	cmd := actor("load", string(raw))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &publishers{in: in, acked: map[string]int{}, answered: map[string]map[string]bool{}, refused: map[string]int{}}
	p.process = begin(t, "publishers", cmd, p.hear)
	return p
}

func (p *publishers) hear(line string) {
	words := strings.Fields(line)
	switch {
	case len(words) == 2 && words[0] == "acked":
		p.acked[words[1]]++
		p.latest.Add(1)
	case len(words) == 3 && words[0] == "answered":
		if p.answered[words[1]] == nil {
			p.answered[words[1]] = map[string]bool{}
		}
		p.answered[words[1]][words[2]] = true
		p.latest.Add(1)
	case len(words) == 3 && words[0] == "refused":
		p.refused[words[2]]++
	case len(words) == 2 && words[0] == "sent":
		n, _ := strconv.ParseInt(words[1], 10, 64)
		p.sent.Store(n)
	}
}

// finish ends the publishers and waits.
func (p *publishers) finish() {
	p.t.Helper()
	if err := p.in.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		p.t.Fatal(err)
	}
	if code := p.exit(90 * time.Second); code != 0 {
		p.t.Fatalf("the publishers ended with %d", code)
	}
}
