package inbox_test

import (
	"encoding/json"
	"fmt"

	"pgregory.net/rapid"

	"signalbox/wire"
)

// act is one thing that happens.
type act struct {
	kind          string
	agent, to     string
	topics        []string
	live          bool
	priority      int
	ttl, advance  int64
	request       bool
	names         []any // rows, or message ids
	fetch         fetchOptions
	flush, forget bool // after it, in the run with random batches
}

var (
	someAgents = []string{"a", "b", "c"}
	someTopics = []string{"x", "y", "x.y"}
	someRoles  = []string{"p/lead", "p/lead/s"}
)

// drawAct draws an act; sent are the rows of the messages before it.
func drawAct(t *rapid.T, sent []int64) act {
	oneOf := func(list ...string) string { return rapid.SampledFrom(list).Draw(t, "of") }
	a := act{kind: oneOf("send", "send", "send", "send", "fetch", "fetch", "fetch", "ack", "ack", "reject", "redrive", "redrive", "tick", "tick", "register", "subscribe",
		"leave", "hold", "close", "poll"),
		agent: oneOf(someAgents...), advance: rapid.SampledFrom([]int64{0, 0, 1, 400, 1000, 5000}).Draw(t, "advance")}
	a.flush = rapid.Bool().Draw(t, "flush")
	a.forget = a.flush && rapid.Bool().Draw(t, "forget")
	name := func() any {
		id := rapid.SampledFrom(append(sent[max(0, len(sent)-12):len(sent):len(sent)], 1)).Draw(t, "row")
		if rapid.Bool().Draw(t, "by row") {
			return id
		}
		return messageIDOfRow(id)
	}
	topics := func() (list []string) {
		for _, topic := range someTopics {
			if rapid.IntRange(0, 2).Draw(t, topic) == 0 {
				list = append(list, topic)
			}
		}
		return list
	}
	switch a.kind {
	case "send":
		a.to = oneOf("a", "a", "a", "b", "c", "topic:x", "topic:x", "topic:y", "topic:x.y", "role:p/lead", "role:p/lead/s", wire.Bridge)
		a.priority = rapid.SampledFrom([]int{5, 5, 5, 1, 9}).Draw(t, "priority")
		a.ttl = rapid.SampledFrom([]int64{1000, 3000, 8000, 60_000}).Draw(t, "ttl")
		a.request = rapid.Bool().Draw(t, "request")
		a.agent = oneOf("a", "b", wire.Bridge)
		if rapid.Bool().Draw(t, "with a topic") {
			a.topics = []string{oneOf(someTopics...)}
		}
	case "register":
		a.topics, a.live = topics(), rapid.IntRange(0, 4).Draw(t, "live") == 0
	case "subscribe":
		a.topics = topics()
	case "hold", "close":
		a.to = oneOf(someRoles...)
	case "fetch", "poll":
		a.fetch = fetchOptions{most: rapid.IntRange(1, 6).Draw(t, "most"), autoAck: rapid.IntRange(0, 3).Draw(t, "auto") == 0,
			redeliverMS: rapid.SampledFrom([]int64{0, 1000, 4000, 30_000}).Draw(t, "redeliver")}
		if rapid.IntRange(0, 2).Draw(t, "some topics") == 0 {
			a.fetch.topics = topics()
		}
	case "ack":
		for range rapid.IntRange(1, 4).Draw(t, "names") {
			a.names = append(a.names, name())
		}
	case "reject", "redrive":
		a.names = []any{name()}
		if rapid.IntRange(0, 3).Draw(t, "recipient") == 0 {
			a.to = oneOf("a", "b", "c", "topic:x", "role:p/lead")
		}
	}
	return a
}

// messageIDOfRow is the message id of a row: every third one is used again by
// the next but two, as a plain publish can.
func messageIDOfRow(id int64) string { return fmt.Sprintf("m%d", id-id%6/3*3) }

func (f fetchOptions) body() string {
	raw, err := json.Marshal(map[string]any{"max_messages": f.most, "include_topics": f.topics, "auto_ack": f.autoAck, "redeliver_after_ms": f.redeliverMS})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

func jsonOf(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(raw)
}
