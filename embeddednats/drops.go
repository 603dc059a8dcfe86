package embeddednats

import (
	"strings"
	"sync/atomic"
	"time"
)

// DropKind says why the server loses messages.
type DropKind string

// The kinds of a DropReport.
const (
	// IngestOverflow: messages come faster than the stream stores them, and its
	// buffer is full. It passes by itself.
	IngestOverflow DropKind = "ingest_overflow"
	// OutOfSpace: the disk (or the quota) is full, and the server names that as the
	// cause. The stream is frozen, or JetStream disabled, until Restart.
	OutOfSpace DropKind = "out_of_space"
	// WriteError: the store could not be written for another reason, or for one that
	// the server hides; a full disk can look like this too. The stream is frozen, or
	// JetStream disabled, until Restart.
	WriteError DropKind = "write_error"
	// LimitsExceeded: MaxStore, MaxMemory or a limit of the account is reached. It
	// passes when messages are removed.
	LimitsExceeded DropKind = "limits_exceeded"
)

// Frozen reports whether only Restart ends what the kind describes.
func (k DropKind) Frozen() bool { return k == OutOfSpace || k == WriteError }

// DropReport says that the server is losing plain publishes. The server says so
// at most about once a second for each stream and cause, and not how many it
// lost, so reports bound a span of time. One trouble may be reported in several
// texts.
type DropReport struct {
	Kind DropKind
	// At is when the server said so: the first loss is earlier by less than a
	// moment, or by up to a second when it goes on.
	At time.Time
	// Account and Stream are empty where the server does not name them.
	Account, Stream string
	// Text is the server's own line.
	Text string
	// Missed counts the reports before this one that were discarded because
	// Options.Dropped did not keep up.
	Missed uint64
}

// recogniseDrop reads a warning or error line of nats-server 2.15 (stream.go,
// jetstream.go, filestore.go). The texts are not an API: a test provokes the main
// ones in a real server, so that an update which changes them is noticed.
func recogniseDrop(text string) (DropReport, bool) {
	report := DropReport{Text: text}
	switch {
	case strings.HasPrefix(text, "Dropping messages due to excessive stream ingest rate"):
		report.Kind = IngestOverflow
	case strings.HasPrefix(text, "JetStream ") && strings.Contains(text, " limits exceeded for "):
		report.Kind = LimitsExceeded
	case strings.HasPrefix(text, "JetStream out of "):
		report.Kind = OutOfSpace
	case strings.HasPrefix(text, "JetStream failed to store a msg on stream "),
		strings.HasPrefix(text, "JetStream stream ") && strings.Contains(text, " critical write error: "),
		strings.HasPrefix(text, "Filestore [") && strings.Contains(text, "] Critical write error: "),
		strings.Contains(text, "ermission denied") && strings.HasSuffix(stem(text), "disabling JetStream"):
		report.Kind = WriteError
		if strings.Contains(text, "no space left") || strings.Contains(text, "quota exceeded") {
			report.Kind = OutOfSpace
		}
	default:
		return DropReport{}, false
	}
	report.Account, report.Stream = namesIn(text)
	return report, true
}

// stem is the text up to the first ": ", where the server appends the error.
func stem(text string) string {
	before, _, _ := strings.Cut(text, ": ")
	return before
}

// namesIn finds the account and the stream in the three ways in which the
// server writes them: 'ACC' > 'STREAM', 'ACC > STREAM' and Filestore [STREAM].
func namesIn(text string) (account, stream string) {
	if rest, ok := strings.CutPrefix(text, "Filestore ["); ok {
		stream, _, _ = strings.Cut(rest, "]")
		return "", stream
	}
	left, right, ok := strings.Cut(stem(text), " > ")
	if !ok {
		return "", ""
	}
	_, account, _ = strings.Cut(left, "'")
	stream, _, _ = strings.Cut(strings.TrimPrefix(right, "'"), "'")
	return strings.TrimSuffix(account, "'"), stream
}

// dropQueue bounds the reports that wait for Options.Dropped. The server sends
// about one a second for each stream and cause.
const dropQueue = 256

// dropReporter carries reports from the server's log, which must not wait, to
// the callback, which may. close joins its goroutine.
type dropReporter struct {
	call   func(DropReport)
	queue  chan DropReport
	missed atomic.Uint64
	stop   chan struct{}
	ended  chan struct{}
}

func newDropReporter(call func(DropReport)) *dropReporter {
	r := &dropReporter{
		call:  call,
		queue: make(chan DropReport, dropQueue),
		stop:  make(chan struct{}),
		ended: make(chan struct{}),
	}
	if call == nil {
		r.call = func(DropReport) {}
	}
	go r.run()
	return r
}

func (r *dropReporter) offer(report DropReport) {
	select {
	case r.queue <- report:
	default:
		r.missed.Add(1)
	}
}

func (r *dropReporter) run() {
	defer close(r.ended)
	for {
		select {
		case report := <-r.queue:
			r.deliver(report)
		case <-r.stop:
			// The server is gone: what is queued is all there will be.
			for {
				select {
				case report := <-r.queue:
					r.deliver(report)
				default:
					return
				}
			}
		}
	}
}

func (r *dropReporter) deliver(report DropReport) {
	report.Missed = r.missed.Swap(0)
	r.call(report)
}

// close delivers what is queued and ends the goroutine. Call it once.
func (r *dropReporter) close() {
	close(r.stop)
	<-r.ended
}
