package bridge

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/micro"

	"signalbox/audit"
	"signalbox/step"
	"signalbox/wire"
)

// pollAgain is when a look that found no free worker is tried again.
const pollAgain = 100 * time.Millisecond

// pollKey is what a waiting poll wants to hear of.
type pollKey struct{ machine, key string }

// pollWait is a request whose command would find nothing yet.
type pollWait struct {
	request micro.Request
	addr    wire.Address
	poll    step.Poll
	empty   []byte    // the answer when the wait is over
	until   time.Time // the end of the wait, once it is known
	keys    []pollKey
	again   time.Time // when to look without being woken; zero for never
	looking bool      // a worker has it
	woken   bool      // since that worker began
}

// polls are the polls that wait, by what wakes them. A command is appended
// only when a look at the register has found something for it: waiting costs
// no row, however many wait.
type polls struct {
	svc   *service   // set before the first request
	mu    sync.Mutex // guards what follows, and the waits in it
	byKey map[pollKey][]*pollWait
	all   map[*pollWait]struct{}
	over  bool // the bridge stops: nothing is appended any more

	looks chan query // again, by those that wait: they must not take the place of others' queries
}

// lookQueue is how many that wait may be about to look again.
const lookQueue = 4096

func newPolls() *polls {
	return &polls{byKey: map[pollKey][]*pollWait{}, all: map[*pollWait]struct{}{}, looks: make(chan query, lookQueue)}
}

// pollEndpoint serves a command that is appended only when it would find
// something.
func (s *service) pollEndpoint(poll step.Poll) micro.HandlerFunc {
	return func(r micro.Request) {
		addr, err := s.admit(r)
		if err != nil {
			s.refuse(r, err)
			return
		}
		w := &pollWait{request: r, addr: addr, poll: poll, looking: true}
		if !s.enqueue(query{run: func(ctx context.Context) { s.polls.look(ctx, w) }}) {
			s.refuse(r, wire.Errorf(wire.TooManyRequests, "%d queries wait already", queryQueue).WithHint("try again"))
		}
	}
}

// look asks the register whether the command would find something, and then
// appends it, waits, or answers that there is nothing.
func (p *polls) look(ctx context.Context, w *pollWait) {
	polled, known, err := p.ask(ctx, w)
	switch {
	case err != nil:
		p.remove(w)
		p.svc.refuse(w.request, readError(err))
		return
	case w.until.IsZero():
		w.until = time.Now().Add(time.Duration(polled.WaitMS) * time.Millisecond)
	}
	if w.empty, err = json.Marshal(polled.Empty); err != nil {
		p.remove(w)
		p.svc.refuse(w.request, err)
		return
	}
	if p.ended() {
		p.remove(w)
		p.svc.reply(w.request, 0, w.empty)
		return
	}
	if polled.Ready || known {
		p.remove(w)
		p.svc.await(w.request, w.addr, p.svc.config.Root.Command(w.addr.From, w.addr.Machine, w.addr.Verb),
			forward(w.request.Headers()), w.request.Data(), p.respond(w))
		return
	}
	switch anew, ok := p.rest(w, polled); {
	case !ok:
		p.remove(w)
		p.svc.reply(w.request, 0, w.empty)
	case anew && !p.again(w):
		// What came between the look and now woke nobody.
		p.later(w)
	}
}

// ask looks once. known says that the request has an outcome already, which
// the fold gives again.
func (p *polls) ask(ctx context.Context, w *pollWait) (polled step.Polled, known bool, err error) {
	err = p.svc.reader.View(ctx, func(tx *sql.Tx) error {
		now, err := p.svc.busNow(ctx, tx)
		if err != nil {
			return err
		}
		if polled, err = w.poll(now, w.addr.From, w.request.Data()); err != nil {
			return err
		}
		if id := w.request.Headers().Get(wire.HeaderMsgID); id != "" && !strings.HasPrefix(id, wire.Once) {
			known, err = audit.HasOutcome(tx, w.addr.From, id)
		}
		return err
	})
	return polled, known, err
}

// clockDB is a read-only look that knows what time it is.
type clockDB struct {
	*sql.Tx
	nowMS int64
}

// NowMS is bus time now, or a little before.
func (c clockDB) NowMS() int64 { return c.nowMS }

// busNow gives a look the bus time that a message would have at least, if it
// were appended now: that of the last commit does not move on a silent bus.
func (b *Bridge) busNow(ctx context.Context, tx *sql.Tx) (clockDB, error) {
	if m := b.moment.Load(); m != nil {
		passed := time.Since(m.at).Nanoseconds()
		if m.busNS > m.logNS { // it runs at half speed
			passed /= 2
		}
		return clockDB{tx, (m.busNS + passed) / int64(time.Millisecond)}, nil
	}
	var busNS int64
	err := tx.QueryRowContext(ctx, `SELECT bus_ns FROM bridge_state`).Scan(&busNS)
	return clockDB{tx, busNS / int64(time.Millisecond)}, err
}

// moment is what bus time was at a commit.
type moment struct {
	at           time.Time // on the monotonic clock
	busNS, logNS int64
}

// rest makes w wait, if its time is not over; anew says that it did not wait for
// all of its keys before.
func (p *polls) rest(w *pollWait, polled step.Polled) (anew, ok bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	_, waits := p.all[w]
	if !now.Before(w.until) || p.over || !waits && len(p.all) >= maxWaiters {
		return false, false
	}
	p.all[w] = struct{}{}
	keys := make([]pollKey, len(polled.Keys))
	for i, key := range polled.Keys {
		keys[i] = pollKey{w.addr.Machine, key}
	}
	if anew = !slices.Equal(keys, w.keys); anew {
		p.unlink(w)
		w.keys = keys
		for _, k := range keys {
			p.byKey[k] = append(p.byKey[k], w)
		}
	}
	w.again = time.Time{}
	if polled.InMS > 0 {
		w.again = now.Add(time.Duration(polled.InMS) * time.Millisecond)
	}
	if w.looking = anew; !w.looking && w.woken {
		w.again = now
	}
	w.woken = false
	return anew, true
}

// remove ends a wait.
func (p *polls) remove(w *pollWait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, w)
	p.unlink(w)
}

// unlink takes w off its keys; the caller holds the lock.
func (p *polls) unlink(w *pollWait) {
	for _, k := range w.keys {
		list := p.byKey[k]
		if i := slices.Index(list, w); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
		if len(list) == 0 {
			delete(p.byKey, k)
		} else {
			p.byKey[k] = list
		}
	}
	w.keys = nil
}

// again hands w to a worker; false when none is to be had.
func (p *polls) again(w *pollWait) bool {
	select {
	case p.looks <- query{run: func(ctx context.Context) { p.look(ctx, w) }}:
		return true
	default:
		return false
	}
}

// work looks again for those that wait, until ctx ends.
func (p *polls) work(ctx context.Context) { answerAll(ctx, p.looks) }

// later leaves a wait to be looked at in a moment.
func (p *polls) later(w *pollWait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.looking, w.again = false, time.Now().Add(pollAgain)
}

// wake makes the polls look that wait for one of the keys.
func (p *polls) wake(keys []pollKey) {
	var list []*pollWait
	p.mu.Lock()
	if len(p.all) > 0 {
		for _, k := range keys {
			for _, w := range p.byKey[k] {
				if w.looking {
					w.woken = true
				} else {
					w.looking = true
					list = append(list, w)
				}
			}
		}
	}
	p.mu.Unlock()
	for _, w := range list {
		if !p.again(w) {
			p.later(w)
		}
	}
}

// waiting is how many wait.
func (p *polls) waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// expire makes those look whose time to do so has come, and ends the waits
// that are over.
func (p *polls) expire(now time.Time) {
	var due, over []*pollWait
	p.mu.Lock()
	for w := range p.all {
		switch {
		case w.looking:
		case now.After(w.until):
			w.looking = true
			over = append(over, w)
		case !w.again.IsZero() && now.After(w.again):
			w.looking = true
			due = append(due, w)
		}
	}
	p.mu.Unlock()
	for _, w := range over {
		p.remove(w)
		p.svc.reply(w.request, 0, w.empty)
	}
	for _, w := range due {
		if !p.again(w) {
			p.later(w)
		}
	}
}

// end answers all, and keeps any look that is under way from appending: the
// bridge stops, and what was fetched then nobody would get.
func (p *polls) end() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.expire(time.Now().Add(time.Hour))
}

func (p *polls) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// respond answers with the outcome of the command. Where another has taken
// what there was, the wait goes on; a request with an id of its own has its
// one outcome.
func (p *polls) respond(w *pollWait) responder {
	return func(b *Bridge, r micro.Request, a answer) {
		lost := a.status == 0 && !a.kept() && bytes.Equal(a.body, w.empty) && time.Now().Before(w.until)
		if !lost || !p.again(&pollWait{request: w.request, addr: w.addr, poll: w.poll, until: w.until, looking: true}) {
			respondRaw(b, r, a)
		}
	}
}
