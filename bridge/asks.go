package bridge

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/micro"

	"signalbox/audit"
	"signalbox/inbox"
	"signalbox/message"
	"signalbox/wire"
)

// askWait is an ask that waits for its response.
type askWait struct {
	request micro.Request
	asker   string
	acc     message.Accepted
	until   time.Time
	looked  bool // what the register had before has been looked at
}

// asks are the asks that wait, by correlation id.
type asks struct {
	bridge *Bridge
	mu     sync.Mutex // guards what follows
	byID   map[string][]*askWait
	count  int
}

func newAsks(b *Bridge) *asks { return &asks{bridge: b, byID: map[string][]*askWait{}} }

// respondAsk answers message.ask: with the response where the register has one
// already, otherwise when one is committed or the wait is over.
func (s *service) respondAsk(asker string, wait time.Duration) responder {
	return func(b *Bridge, r micro.Request, a answer) {
		acc, ok := b.accepted(r, a)
		if !ok {
			return
		}
		w := &askWait{request: r, asker: asker, acc: acc, until: time.Now().Add(wait)}
		// It waits from now on; what came before is looked up by a query worker,
		// which answers it if it still waits.
		if !b.asks.add(w) {
			b.metrics.refused(wire.TooManyRequests)
			b.asks.reply(w, nil) // it is queued, and the response can be asked for again
			return
		}
		if !s.enqueue(query{run: func(ctx context.Context) { b.asks.lookBack(ctx, w) }}) {
			b.metrics.unwatched.Inc()
			b.asks.lookedAt(w)
		}
	}
}

// add makes w wait; false when too many do.
func (a *asks) add(w *askWait) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.count >= maxWaiters {
		return false
	}
	a.count++
	a.byID[w.acc.CorrelationID] = append(a.byID[w.acc.CorrelationID], w)
	return true
}

// settle answers one ask that still waits.
func (a *asks) settle(w *askWait, response *audit.Row) {
	a.mu.Lock()
	list := a.byID[w.acc.CorrelationID]
	i := slices.Index(list, w)
	if i >= 0 {
		a.count--
		if list = slices.Delete(list, i, i+1); len(list) == 0 {
			delete(a.byID, w.acc.CorrelationID)
		} else {
			a.byID[w.acc.CorrelationID] = list
		}
	}
	a.mu.Unlock()
	if i >= 0 {
		a.reply(w, response)
	}
}

func (a *asks) reply(w *askWait, response *audit.Row) {
	if response != nil {
		raw, err := response.MarshalJSON()
		if err != nil {
			a.bridge.log.Error("a response cannot be written", "id", response.ID, "err", err)
		}
		w.acc.State = message.Answered
		reply := message.Reply(message.Ask, w.acc).(message.AskReply)
		reply.Response = a.bridge.fit(raw, response)
		a.bridge.respondJSON(w.request, reply)
		return
	}
	w.acc.State = a.bridge.stateOf(w.acc)
	a.bridge.respondJSON(w.request, message.Reply(message.Ask, w.acc))
}

// stateWithin bounds the look at what became of a question.
const stateWithin = 2 * time.Second

// stateOf says whether a question was fetched.
func (b *Bridge) stateOf(acc message.Accepted) string {
	ctx, cancel := context.WithTimeout(b.life, stateWithin)
	defer cancel()
	state := message.Queued
	err := b.reader.View(ctx, func(tx *sql.Tx) error {
		list, err := inbox.Deliveries(tx, acc.ID)
		if s := inbox.Status(list); s == message.Delivered || s == message.Acked {
			state = message.Delivered
		}
		return err
	})
	if err != nil {
		b.log.Warn("what became of a question was not looked up", "id", acc.ID, "err", err)
	}
	return state
}

// responds reports whether a row is the response to an ask.
func (w *askWait) responds(row *audit.Row) bool {
	return row.Kind == wire.Msg && row.Type == wire.TypeResponse && row.CorrelationID == w.acc.CorrelationID &&
		row.To == "agent:"+w.asker
}

// offer answers the asks that committed rows respond to.
func (a *asks) offer(rows []*audit.Row) {
	a.mu.Lock()
	if len(a.byID) == 0 {
		a.mu.Unlock()
		return
	}
	type match struct {
		w   *askWait
		row *audit.Row
	}
	var matches []match
	for _, row := range rows {
		for _, w := range a.byID[row.CorrelationID] {
			if w.responds(row) {
				matches = append(matches, match{w, row})
			}
		}
	}
	a.mu.Unlock()
	for _, m := range matches {
		a.settle(m.w, m.row)
	}
}

// lookBack answers an ask from what the register has already. Until it has
// looked, the end of the wait does not count: the answer may be there.
func (a *asks) lookBack(ctx context.Context, w *askWait) {
	page, err := a.bridge.reader.Log(ctx, audit.Filter{Correlation: w.acc.CorrelationID, To: "agent:" + w.asker,
		Type: wire.TypeResponse, Kinds: []wire.Kind{wire.Msg}, Limit: 1})
	if err != nil {
		a.bridge.log.Warn("the response to an ask was not looked up", "err", err)
	} else if len(page.Rows) > 0 {
		a.settle(w, page.Rows[len(page.Rows)-1])
		return
	}
	a.lookedAt(w)
}

// lookedAt lets the wait of an ask come to its end.
func (a *asks) lookedAt(w *askWait) {
	a.mu.Lock()
	w.looked = true
	over := !time.Now().Before(w.until)
	a.mu.Unlock()
	if over {
		a.settle(w, nil)
	}
}

// end answers all asks: the bridge stops, and the register has the response
// later.
func (a *asks) end() {
	var all []*askWait
	a.mu.Lock()
	for _, list := range a.byID {
		all = append(all, list...)
	}
	a.mu.Unlock()
	for _, w := range all {
		a.settle(w, nil)
	}
}

// expire answers the asks whose wait is over.
func (a *asks) expire(now time.Time) {
	var late []*askWait
	a.mu.Lock()
	for _, list := range a.byID {
		for _, w := range list {
			if w.looked && now.After(w.until) {
				late = append(late, w)
			}
		}
	}
	a.mu.Unlock()
	for _, w := range late {
		a.settle(w, nil)
	}
}
