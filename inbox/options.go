package inbox

import (
	"slices"

	"signalbox/step"
	"signalbox/wire"
)

// Limits and defaults of a fetch.
const (
	MaxMessages           = 100        // of one fetch
	DefaultMessages       = 20         //
	MaxTopics             = 64         // of one fetch
	MaxWaitMS             = 30_000     //
	DefaultRedeliverAfter = 30_000     // milliseconds
	MaxRedeliverAfter     = 86_400_000 // milliseconds
)

// Options is a fetch, with defaults in place.
type Options struct {
	MaxMessages      int
	IncludeTopics    []string // only deliveries with one of them; sorted; none: all
	AutoAck          bool
	WaitMS           int64 // how long to wait for the first message
	RedeliverAfterMS int64 // after which what was fetched and not acked is given out again
}

// ReadOptions reads the body of a fetch. The error is a *wire.Error with code
// BodyInvalid that names the field and its range.
func ReadOptions(body []byte) (Options, error) {
	var b struct {
		MaxMessages      *int64   `json:"max_messages"`
		IncludeTopics    []string `json:"include_topics"`
		AutoAck          bool     `json:"auto_ack"`
		WaitMS           *int64   `json:"wait_ms"`
		RedeliverAfterMS *int64   `json:"redeliver_after_ms"`
	}
	if err := step.Decode(body, &b); err != nil {
		return Options{}, err
	}
	most, refusal := within("max_messages", b.MaxMessages, 1, MaxMessages, DefaultMessages)
	if refusal != nil {
		return Options{}, refusal
	}
	o := Options{MaxMessages: int(most), AutoAck: b.AutoAck}
	if o.WaitMS, refusal = within("wait_ms", b.WaitMS, 0, MaxWaitMS, 0); refusal != nil {
		return Options{}, refusal
	}
	if o.RedeliverAfterMS, refusal = within("redeliver_after_ms", b.RedeliverAfterMS, 0, MaxRedeliverAfter, DefaultRedeliverAfter); refusal != nil {
		return Options{}, refusal
	}
	if len(b.IncludeTopics) > MaxTopics {
		return Options{}, wire.Errorf(wire.BodyInvalid, "include_topics has %d topics, at most %d may be", len(b.IncludeTopics), MaxTopics)
	}
	for _, topic := range b.IncludeTopics {
		if !wire.ValidTopic(topic) {
			return Options{}, wire.Errorf(wire.BodyInvalid, "include_topics has %.200q, which is no topic", topic).
				WithHint("a topic is 1 to 8 tokens of A-Z a-z 0-9 _ - joined by dots")
		}
	}
	o.IncludeTopics = slices.Compact(slices.Sorted(slices.Values(b.IncludeTopics)))
	return o, nil
}

// within is a number in its range; one that was left out is the default.
func within(field string, value *int64, low, high, byDefault int64) (int64, *wire.Error) {
	switch {
	case value == nil:
		return byDefault, nil
	case *value < low || *value > high:
		return 0, wire.Errorf(wire.BodyInvalid, "%s is %d, and must be %d to %d", field, *value, low, high)
	}
	return *value, nil
}
