package bridge

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/nats-io/nats.go/micro"

	"signalbox/audit"
	"signalbox/message"
	"signalbox/wire"
)

// maxWaiters bounds the requests that wait for an outcome.
const maxWaiters = 65536

// waitKey is whose request, and its id.
type waitKey struct{ from, id string }

// responder makes a committed outcome the answer to a request.
type responder func(b *Bridge, r micro.Request, a answer)

// waiter is a request that waits for its outcome.
type waiter struct {
	request micro.Request
	respond responder
	until   time.Time
}

// waiters are the requests that wait, by request id: several may wait for one.
type waiters struct {
	bridge *Bridge
	mu     sync.Mutex // guards what follows
	byKey  map[waitKey][]waiter
	count  int
}

func newWaiters(b *Bridge) *waiters { return &waiters{bridge: b, byKey: map[waitKey][]waiter{}} }

// add makes w wait; false when too many do.
func (w *waiters) add(key waitKey, one waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count >= maxWaiters {
		return false
	}
	w.byKey[key] = append(w.byKey[key], one)
	w.count++
	return true
}

func (w *waiters) take(key waitKey) []waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.byKey[key]
	delete(w.byKey, key)
	w.count -= len(list)
	return list
}

// waiting is how many wait.
func (w *waiters) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// answer answers all that wait for the outcomes.
func (w *waiters) answer(_ context.Context, answers []answer) {
	for _, a := range answers {
		for _, one := range w.take(waitKey{from: a.from, id: a.id}) {
			one.respond(w.bridge, one.request, a)
		}
	}
}

// fail answers a request whose command is not in the log.
func (w *waiters) fail(key waitKey, refusal *wire.Error) {
	w.bridge.metrics.refused(refusal.Code)
	for _, one := range w.take(key) {
		w.bridge.reply(one.request, refusal.Code.Status(), refusal.Body())
	}
}

// expire answers what has waited too long; the outcome will still come about.
func (w *waiters) expire(now time.Time) {
	var late []waiter
	w.mu.Lock()
	for key, list := range w.byKey {
		kept := list[:0]
		for _, one := range list {
			if now.After(one.until) {
				late = append(late, one)
			} else {
				kept = append(kept, one)
			}
		}
		if w.count -= len(list) - len(kept); len(kept) == 0 {
			delete(w.byKey, key)
		} else {
			w.byKey[key] = kept
		}
	}
	w.mu.Unlock()
	refusal := wire.Errorf(wire.OutcomePending, "no outcome within %s", outcomeWithin).
		WithHint("ask again with the same Nats-Msg-Id: it has one effect, and the first outcome is the answer")
	for _, one := range late {
		w.bridge.metrics.refused(refusal.Code)
		w.bridge.reply(one.request, refusal.Code.Status(), refusal.Body())
	}
}

// respondRaw answers with the outcome as it is.
func respondRaw(b *Bridge, r micro.Request, a answer) {
	body := a.body
	if a.status == 0 && (len(body) == 0 || string(body) == "null") {
		body = []byte("{}")
	}
	b.reply(r, a.status, body)
}

// accepted reads the outcome of a message; false for a refusal, which is sent.
func (b *Bridge) accepted(r micro.Request, a answer) (message.Accepted, bool) {
	var acc message.Accepted
	if a.status != 0 {
		b.reply(r, a.status, a.body)
		return acc, false
	}
	if err := json.Unmarshal(a.body, &acc); err != nil {
		b.log.Error("an outcome cannot be read", "id", a.row.ID, "err", err)
		refusal := wire.Errorf(wire.Internal, "the outcome of row %d cannot be read", a.row.ID)
		b.reply(r, refusal.Code.Status(), refusal.Body())
		return acc, false
	}
	return acc, true
}

// respondMessage answers message.send and message.handoff.
func (s *service) respondMessage(verb string) responder {
	return func(b *Bridge, r micro.Request, a answer) {
		if acc, ok := b.accepted(r, a); ok {
			b.respondJSON(r, message.Reply(verb, acc))
		}
	}
}

func (b *Bridge) respondJSON(r micro.Request, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		b.log.Error("a reply cannot be written", "subject", r.Subject(), "err", err)
		return
	}
	b.reply(r, 0, body)
}

// askWait is an ask that waits for its response.
type askWait struct {
	request micro.Request
	asker   string
	acc     message.Accepted
	until   time.Time
}

// asks are the asks that wait, by correlation id.
type asks struct {
	bridge *Bridge
	mu     sync.Mutex // guards what follows
	byID   map[string][]askWait
}

func newAsks(b *Bridge) *asks { return &asks{bridge: b, byID: map[string][]askWait{}} }

// respondAsk answers message.ask: with the response where the register has one
// already, otherwise when one is committed or the wait is over.
func (s *service) respondAsk(asker string, wait time.Duration) responder {
	return func(b *Bridge, r micro.Request, a answer) {
		acc, ok := b.accepted(r, a)
		if !ok {
			return
		}
		w := askWait{request: r, asker: asker, acc: acc, until: time.Now().Add(wait)}
		// It waits from now on; what came before is looked up by a query worker,
		// which answers it if it still waits.
		b.asks.add(w)
		if !s.enqueue(query{run: func(ctx context.Context) { b.asks.lookBack(ctx, w, wait == 0) }}) && wait == 0 {
			b.asks.settle(w, nil)
		}
	}
}

func (a *asks) add(w askWait) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byID[w.acc.CorrelationID] = append(a.byID[w.acc.CorrelationID], w)
}

// settle answers one ask that still waits.
func (a *asks) settle(w askWait, response *audit.Row) {
	a.mu.Lock()
	list := a.byID[w.acc.CorrelationID]
	found := false
	for i := range list {
		if list[i].request == w.request {
			list = append(list[:i], list[i+1:]...)
			found = true
			break
		}
	}
	if len(list) == 0 {
		delete(a.byID, w.acc.CorrelationID)
	} else {
		a.byID[w.acc.CorrelationID] = list
	}
	a.mu.Unlock()
	if found {
		a.reply(w, response)
	}
}

func (a *asks) reply(w askWait, response *audit.Row) {
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
	a.bridge.respondJSON(w.request, message.Reply(message.Ask, w.acc))
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
		w   askWait
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

// lookBack answers an ask from what the register has already; last says that
// there is nothing to wait for.
func (a *asks) lookBack(ctx context.Context, w askWait, last bool) {
	page, err := a.bridge.reader.Log(ctx, audit.Filter{Correlation: w.acc.CorrelationID, To: "agent:" + w.asker,
		Type: wire.TypeResponse, Kinds: []wire.Kind{wire.Msg}, Limit: 1})
	if err != nil {
		a.bridge.log.Warn("the response to an ask was not looked up", "err", err)
	} else if len(page.Rows) > 0 {
		a.settle(w, page.Rows[len(page.Rows)-1])
		return
	}
	if last {
		a.settle(w, nil)
	}
}

// expire answers the asks whose wait is over.
func (a *asks) expire(now time.Time) {
	var late []askWait
	a.mu.Lock()
	for _, list := range a.byID {
		for _, w := range list {
			if now.After(w.until) {
				late = append(late, w)
			}
		}
	}
	a.mu.Unlock()
	for _, w := range late {
		a.settle(w, nil)
	}
}
