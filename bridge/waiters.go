package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/micro"

	"signalbox/message"
	"signalbox/wire"
)

// maxWaiters bounds the requests that wait for an outcome.
const maxWaiters = 65536

// waitKey is whose request it is, its id, and what it says: two requests with
// one id and different contents have different outcomes.
type waitKey struct {
	from, id string
	hash     [sha256.Size]byte
}

// keyOf is the key of a request as the log has it. The hash covers subject,
// Bus- headers and body: what two requests with one id must share.
func keyOf(from, id, subject string, header wire.Header, body []byte) waitKey {
	key := waitKey{from: from, id: id}
	if !key.kept() {
		return key
	}
	h := sha256.New()
	part := func(s []byte) {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		h.Write(s)
	}
	part([]byte(subject))
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if !strings.HasPrefix(name, "Bus-") || name == wire.HeaderRequestID {
			continue
		}
		part([]byte(name))
		for _, v := range header[name] {
			part([]byte(v))
		}
	}
	part(body)
	h.Sum(key.hash[:0])
	return key
}

// kept reports whether the outcome is kept under the id: it is the caller's.
func (k waitKey) kept() bool { return k.id != "" && !strings.HasPrefix(k.id, wire.Once) }

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
	byKey  map[waitKey][]*waiter
	count  int
}

func newWaiters(b *Bridge) *waiters { return &waiters{bridge: b, byKey: map[waitKey][]*waiter{}} }

// add makes w wait; false when too many do.
func (w *waiters) add(key waitKey, one *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count >= maxWaiters {
		return false
	}
	w.byKey[key] = append(w.byKey[key], one)
	w.count++
	return true
}

func (w *waiters) take(key waitKey) []*waiter {
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
		for _, one := range w.take(a.waitKey) {
			one.respond(w.bridge, one.request, a)
		}
	}
}

// fail answers one request whose command is not in the log; others with its id
// may be.
func (w *waiters) fail(key waitKey, one *waiter, refusal *wire.Error) {
	w.mu.Lock()
	list := w.byKey[key]
	i := slices.Index(list, one)
	if i >= 0 {
		w.count--
		if list = slices.Delete(list, i, i+1); len(list) == 0 {
			delete(w.byKey, key)
		} else {
			w.byKey[key] = list
		}
	}
	w.mu.Unlock()
	if i < 0 {
		return // it has its answer
	}
	w.bridge.metrics.refused(refusal.Code)
	w.bridge.reply(one.request, refusal.Code.Status(), refusal.Body())
}

// expire answers what has waited too long; the outcome will still come about.
func (w *waiters) expire(now time.Time) {
	var late []*waiter
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
