package message_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"signalbox/message"
	"signalbox/wire"
)

const root = wire.Root("bus")

func FuzzCompose(f *testing.F) {
	for _, body := range []string{`{"to":"you"}`, `{"to":"role:p/k","payload":[1],"priority":-1,"ttl_ms":9223372036854775807}`,
		`{"to":"you","question":"?","await_response_ms":9223372036854775807}`, `{"to":"you","task":{},"context_refs":[]}`, `{"to":"you","from":"x"}`,
		`{"to":"topic:a.b","topic":"..","type":"x"}`, `null`, ``} {
		f.Add(message.Send, []byte(body))
		f.Add(message.Ask, []byte(body))
		f.Add(message.Handoff, []byte(body))
	}
	f.Fuzz(func(t *testing.T, verb string, body []byte) {
		d, err := message.Compose(verb, "me", body)
		if err != nil {
			var refusal *wire.Error
			if !errors.As(err, &refusal) || refusal.Code.Status() != 400 && refusal.Code.Status() != 403 {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		if a, err := root.Parse(root.To("me", d.To)); err != nil || a.To != d.To || a.From != "me" {
			t.Fatalf("it goes to %+v, which reads as %+v, %v", d.To, a, err)
		}
		if _, err := wire.ReadEnvelope(d.Header); err != nil {
			t.Fatalf("its headers %v: %v", d.Header, err)
		}
		if d.Wait < 0 || d.Wait > message.MaxWait {
			t.Fatalf("it waits %s", d.Wait)
		}
		if len(d.Body) > 0 && !json.Valid(d.Body) {
			t.Fatalf("its body is %q", d.Body)
		}
	})
}

func TestEachVerbTakesItsOwnFields(t *testing.T) {
	for _, c := range []struct {
		verb, body string
		want       wire.Code
	}{
		{message.Send, `{"to":"you","question":"?"}`, wire.BodyInvalid},
		{message.Send, `{"payload":1}`, wire.BodyInvalid},
		{message.Ask, `{"to":"you"}`, wire.BodyInvalid},
		{message.Ask, `{"to":"you","question":"?","type":"event"}`, wire.BodyInvalid},
		{message.Ask, `{"to":"you","question":"?","task":1}`, wire.BodyInvalid},
		{message.Handoff, `{"to":"you"}`, wire.BodyInvalid},
		{message.Handoff, `{"to":"you","task":1,"await_response_ms":1}`, wire.BodyInvalid},
		{message.Send, `{"to":"you","from":"somebody"}`, wire.IdentityMismatch},
		{message.Send, `{"to":"a.b"}`, wire.IDInvalid},
		{message.Send, `{"to":"you","correlation_id":"with space"}`, wire.HeaderInvalid},
		{message.Send, `{"to":"you","type":"letter"}`, wire.HeaderInvalid},
	} {
		_, err := message.Compose(c.verb, "me", []byte(c.body))
		var refusal *wire.Error
		if !errors.As(err, &refusal) || refusal.Code != c.want {
			t.Errorf("%s %s: %v, want %s", c.verb, c.body, err, c.want)
		}
	}
	d, err := message.Compose(message.Ask, "me", []byte(`{"to":"you","question":"<?>","context_refs":["r"],"await_response_ms":60000}`))
	if err != nil || d.Wait != 30*time.Second || d.Header.First(wire.HeaderType) != "request" {
		t.Errorf("an ask is %+v, %v", d, err)
	}
}
