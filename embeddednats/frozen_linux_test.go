package embeddednats_test

import (
	"context"
	"errors"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"signalbox/embeddednats"
)

// limitFiles lets no file of this process grow beyond a size, which makes writes
// fail in the kernel as on a full disk and needs no privilege. The returned
// function takes the limit away.
func limitFiles(t *testing.T, bytes uint64) (lift func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ) // comes with the error, and would end the process
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	set := func(limit syscall.Rlimit) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	set(syscall.Rlimit{Cur: bytes, Max: old.Max})
	lift = func() { set(old) }
	t.Cleanup(lift)
	return lift
}

// The server freezes a stream that it could not write, even when writing would
// work again. Only a Restart thaws it.
func TestAStreamFrozenByItsDiskIsReportedAndRestartThawsIt(t *testing.T) {
	var drops <-chan embeddednats.DropReport
	s := start(t, quiet(t, func(o *embeddednats.Options) { drops = reports(o) }))
	nc := connect(t, s)
	js, st := stream(t, nc, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})

	lift := limitFiles(t, 64<<10)
	acked := publishUntilSilence(t, js)
	lift()
	r := firstOf(t, drops, is(embeddednats.WriteError))
	if r.Stream != "S" || !r.Kind.Frozen() {
		t.Errorf("report %+v", r)
	}
	if more := publishUntilSilence(t, js); more != 0 {
		t.Errorf("the stream took %d messages: it is not frozen, and Restart proves nothing", more)
	}

	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilBack(t, nc)
	if got := count(t, st); got != acked {
		t.Errorf("%d messages after Restart, %d were acknowledged", got, acked)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("thawed")); err != nil {
		t.Errorf("still frozen after Restart: %v", err)
	}
}

// publishUntilSilence counts the messages that were acknowledged before the
// first that got no answer, which is how a frozen stream refuses.
func publishUntilSilence(t *testing.T, js jetstream.JetStream) (acked uint64) {
	t.Helper()
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := js.Publish(ctx, "s", make([]byte, 4<<10))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return acked
		}
		if err != nil {
			t.Fatal(err)
		}
		acked++
	}
	t.Fatal("the stream took every message")
	return acked
}
