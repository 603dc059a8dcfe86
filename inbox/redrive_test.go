package inbox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"signalbox/step"
	"signalbox/wire"
)

func TestI7ADeadLetterIsRedrivenWithAFreshTimeAndTheSameMessage(t *testing.T) {
	for _, to := range []string{"a", "b", "topic:x", "role:p/lead"} {
		r := newRig(t)
		recipient := to
		if to == "b" {
			r.register("b")
			r.lastID = 0
		}
		id, _ := r.send(draft{to: to, ttl: 2 * time.Second, messageID: "x", body: "original"})
		if to == "b" {
			equal(t, "fetched before it died", r.fetch("b", ""), []int64{id})
		}
		r.nowMS += 2000
		r.tick()
		r.nowMS += 500
		e, refusal := r.try("op", "redrive", `{"message_id":"x"}`)
		if refusal != nil {
			t.Fatal(refusal)
		}
		redriven := r.lastID
		want := map[string]any{"message_id": "x", "id": float64(id), "recipient": recipient, "expires_at_ms": float64(r.nowMS + 2000)}
		equal(t, "the reply", asMap(t, e.Reply), want)
		equal(t, "told", told(e), []string{"me.redriven"})
		equal(t, "the chain", []string{e.Told[0].CorrelationID, e.Told[0].TraceID}, []string{"c1", "t1"})
		equal(t, "woken", e.Woken, []string{recipient})
		equal(t, "dead letters", r.count(`SELECT count(*) FROM dead_letters`), 0)
		equal(t, "the cause", r.count(`SELECT redriven_id FROM deliveries`), redriven)
		// Again, under each of its names, it answers the same and does nothing.
		want["idempotent"] = true
		for _, body := range []string{`{"message_id":"x"}`, fmt.Sprintf(`{"id":%d}`, id), fmt.Sprintf(`{"message_id":%d,"recipient":%q}`, id, recipient)} {
			e, _ := r.try("op", "redrive", body)
			equal(t, "the reply again", asMap(t, e.Reply), want)
			e.Reply = nil
			equal(t, "its effects", e, step.Effects{})
		}
		r.held["p/lead"] = "a"
		r.register("a", "x")
		who, attempts := "a", 1.0
		if to == "b" {
			who, attempts = "b", 2.0
		}
		got := r.do(who, "fetch", "")["messages"].([]any)[0].(map[string]any)
		equal(t, "the message", []any{got["body"], got["message_id"], got["attempts"]}, []any{"original", "x", attempts})
		if to != "topic:x" {
			// It can die again, once.
			r.nowMS += 2000
			r.tick()
			equal(t, "dead again", r.deliveries(id), []string{recipient + ":expired"})
			if _, refusal := r.try("op", "redrive", `{"message_id":"x"}`); refusal != nil {
				t.Error(refusal)
			}
		}
	}
}

func TestRedriveSaysWhyItDoesNot(t *testing.T) {
	r := newRig(t)
	r.register("a", "x")
	r.register("b", "x")
	both, _ := r.send(draft{to: "topic:x", ttl: time.Second, messageID: "both"})
	r.nowMS += 1000
	r.tick()
	if _, err := r.db.Exec(`INSERT INTO dead_letters (recipient, id, message_id, reason, failed_at_ms, last_error, cause)
		VALUES ('counter', 90, 'cmd', 'refused:BODY_INVALID', 1, 'not JSON', 90)`); err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]wire.Code{
		`{"message_id":"nobody"}`: wire.NotFound, `{"id":77}`: wire.NotFound, `{"message_id":"both","recipient":"c"}`: wire.NotFound,
		`{"message_id":"both"}`: wire.RecipientRequired, fmt.Sprintf(`{"id":%d}`, both): wire.RecipientRequired,
		`{"message_id":"cmd"}`: wire.NotRedrivable, `{"id":90,"recipient":"counter"}`: wire.NotRedrivable,
		`{}`: wire.BodyInvalid, `{"message_id":"x","id":1}`: wire.BodyInvalid, `{"message_id":true}`: wire.BodyInvalid, `{"id":1.5}`: wire.BodyInvalid,
		`{"message_id":""}`: wire.BodyInvalid, `{"message_id":null}`: wire.BodyInvalid, `{"x":1}`: wire.BodyInvalid,
	} {
		before := r.db.executed
		_, refusal := r.try("op", "redrive", body)
		if refusal == nil || refusal.Code != want {
			t.Errorf("%s: %v, want %s", body, refusal, want)
		}
		if want == wire.RecipientRequired {
			equal(t, "whose", string(refusal.Current), fmt.Sprintf(`{"dead":[{"id":%d,"recipient":"a"},{"id":%d,"recipient":"b"}]}`, both, both))
		}
		if want == wire.BodyInvalid {
			equal(t, "statements of "+body, r.db.executed, before)
		}
	}
	equal(t, "statuses", []int{wire.RecipientRequired.Status(), wire.NotRedrivable.Status()}, []int{400, 409})
	equal(t, "redriven for b", r.do("op", "redrive", `{"message_id":"both","recipient":"b"}`)["recipient"], any("b"))
	equal(t, "the only one left", r.do("op", "redrive", `{"message_id":"both"}`)["recipient"], any("a"))
	for _, body := range []string{`{"message_id":"both"}`, fmt.Sprintf(`{"id":%d}`, both)} {
		equal(t, "the last of those redriven", r.do("op", "redrive", body)["recipient"], any("a"))
	}
	r.do("b", "ack", `{"ids":["both"]}`)
	equal(t, "the two", r.deliveries(both), []string{"a:queued", "b:acked"})
}

func TestARejectedMessageIsADeadLetterAndItsSenderHears(t *testing.T) {
	r := newRig(t)
	r.register("a")
	r.held["p/lead"] = "a"
	for i, to := range []string{"a", "role:p/lead"} {
		recipient := to
		for _, fetch := range []bool{true, false} {
			for _, byRow := range []bool{true, false} {
				messageID := fmt.Sprintf("m-%d-%v-%v", i, fetch, byRow)
				id, _ := r.send(draft{to: to, messageID: messageID})
				if fetch {
					r.fetch("a", "")
				}
				name := fmt.Sprintf("%q", messageID)
				if byRow {
					name = fmt.Sprint(id)
				}
				body := `{"id":` + name + `,"reason":"not my field"}`
				if _, refusal := r.try("b", "reject", body); refusal == nil || refusal.Code != wire.NotFound {
					t.Errorf("a reject by another: %v", refusal)
				}
				e, refusal := r.try("a", "reject", body)
				if refusal != nil {
					t.Fatalf("%s: %v", body, refusal)
				}
				want := map[string]any{"id": float64(id), "message_id": messageID, "rejected": 1.0}
				equal(t, "the reply", asMap(t, e.Reply), want)
				equal(t, "told", told(e), []string{"me.dead"})
				equal(t, "messages", len(e.Messages), 0)
				equal(t, "the reason", e.Told[0].Body.(map[string]any)["last_error"], any("not my field"))
				e, _ = r.try("a", "reject", body)
				want["idempotent"] = true
				equal(t, "the reply again", asMap(t, e.Reply), want)
				equal(t, "told again", told(e), []string(nil))
				equal(t, "the delivery", r.deliveries(id), []string{recipient + ":dead_letter"})
				equal(t, "its outcome", r.count(`SELECT count(*) FROM deliveries JOIN dead_letters USING (id, recipient)
					WHERE id = ? AND outcome = 'rejected' AND reason = 'rejected' AND last_error = 'not my field' AND outcome_id = cause`, id), 1)
			}
		}
	}
	for body, want := range map[string]string{`{}`: "id", `{"id":[]}`: "id", `{"id":1,"reason":"` + strings.Repeat("ä", 1001) + `"}`: "1000", `{"id":1,"why":""}`: "why"} {
		if _, refusal := r.try("a", "reject", body); refusal == nil || refusal.Code != wire.BodyInvalid || !strings.Contains(refusal.Message, want) {
			t.Errorf("%.40s: %v", body, refusal)
		}
	}
	if _, refusal := r.try("a", "reject", `{"id":1,"reason":"`+strings.Repeat("ä", 1000)+`"}`); refusal == nil || refusal.Code != wire.NotFound {
		t.Errorf("a long reason: %v", refusal)
	}
}
