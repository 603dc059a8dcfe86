package embeddednats_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"signalbox/embeddednats"
)

// reports collects what Dropped is called with, as far as a test reads it.
func reports(o *embeddednats.Options) <-chan embeddednats.DropReport {
	out := make(chan embeddednats.DropReport, 1000)
	o.Dropped = func(r embeddednats.DropReport) {
		select {
		case out <- r:
		default:
		}
	}
	return out
}

func firstOf(t *testing.T, in <-chan embeddednats.DropReport, wanted func(embeddednats.DropKind) bool) embeddednats.DropReport {
	t.Helper()
	end := time.After(bound)
	for {
		select {
		case r := <-in:
			if wanted(r.Kind) {
				return r
			}
		case <-end:
			t.Fatal("no such report")
		}
	}
}

func is(kind embeddednats.DropKind) func(embeddednats.DropKind) bool {
	return func(k embeddednats.DropKind) bool { return k == kind }
}

func TestABurstOf200000PlainPublishesIsStoredWhole(t *testing.T) {
	const burst = 200_000
	var drops <-chan embeddednats.DropReport
	s := start(t, quiet(t, func(o *embeddednats.Options) { drops = reports(o) }))
	nc := connect(t, s)
	_, st := stream(t, nc, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	body := make([]byte, 256)
	for range burst {
		if err := nc.Publish("s.a", body); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	until(t, "all messages stored", func() bool { return count(t, st) == burst || len(drops) > 0 })
	if got := count(t, st); got != burst {
		t.Errorf("%d messages stored of %d: %+v", got, burst, <-drops)
	}
}

func TestOverflowOfTheIngestQueueIsReported(t *testing.T) {
	var drops <-chan embeddednats.DropReport
	begin := time.Now()
	s := start(t, quiet(t, func(o *embeddednats.Options) {
		o.MaxBufferedMsgs, o.MaxBufferedBytes = 2, 4096
		o.SyncAlways = true
		drops = reports(o)
	}))
	nc := connect(t, s)
	const sent = 20_000
	_, st := stream(t, nc, jetstream.StreamConfig{Name: "FLOOD", Subjects: []string{"flood.>"}})
	for i := range sent {
		if err := nc.Publish(fmt.Sprintf("flood.%d", i%7), make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	r := firstOf(t, drops, is(embeddednats.IngestOverflow))
	if r.Account != "$G" || r.Stream != "FLOOD" || r.Text == "" || r.Kind.Frozen() {
		t.Errorf("report %+v", r)
	}
	if r.At.Before(begin) || r.At.After(time.Now()) {
		t.Errorf("report at %s", r.At)
	}
	if got := count(t, st); got >= sent {
		t.Errorf("a loss was reported and all %d messages are there", got)
	}
}

func TestAStoreAtItsLimitIsReported(t *testing.T) {
	var drops <-chan embeddednats.DropReport
	s := start(t, quiet(t, func(o *embeddednats.Options) {
		o.MaxStore = 64 << 10
		drops = reports(o)
	}))
	nc := connect(t, s)
	stream(t, nc, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	for range 200 {
		if err := nc.Publish("s", make([]byte, 1024)); err != nil {
			t.Fatal(err)
		}
	}
	if r := firstOf(t, drops, is(embeddednats.LimitsExceeded)); r.Kind.Frozen() {
		t.Errorf("report %+v", r)
	}
}
