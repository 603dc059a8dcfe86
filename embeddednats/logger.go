package embeddednats

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// LevelTrace is the level of the server's protocol trace, which is one line for
// each protocol message: below slog.LevelDebug.
const LevelTrace = slog.LevelDebug - 4

// serverLog is the server's logger: it hands every line to slog, keeps the first
// fatal and the first error line for whoever waits for the start, and watches
// for lines that say that messages are being lost. The server calls it while
// holding its locks, so it must neither wait nor call back.
type serverLog struct {
	out   *slog.Logger
	drops *dropReporter
	// fatal and failed hold one line each: the first is the cause, the rest follow
	// from it.
	fatal  chan string
	failed chan string
	// last is the newest line at Info or above: where a start hangs that hangs.
	last atomic.Pointer[string]
}

var _ server.Logger = (*serverLog)(nil)

func newServerLog(out *slog.Logger, drops *dropReporter) *serverLog {
	return &serverLog{
		out:    out.With("source", "nats-server"),
		drops:  drops,
		fatal:  make(chan string, 1),
		failed: make(chan string, 1),
	}
}

func (l *serverLog) enabled(level slog.Level) bool {
	return l.out.Enabled(context.Background(), level)
}

func (l *serverLog) write(level slog.Level, text string) {
	if level >= slog.LevelInfo {
		l.last.Store(&text)
	}
	l.out.Log(context.Background(), level, strings.TrimSpace(text))
}

// Noticef logs what the server considers worth knowing at Info.
func (l *serverLog) Noticef(format string, v ...any) {
	l.write(slog.LevelInfo, fmt.Sprintf(format, v...))
}

// Warnf logs at Warn.
func (l *serverLog) Warnf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.watch(text)
	l.write(slog.LevelWarn, text)
}

// Errorf logs at Error.
func (l *serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	keepFirst(l.failed, text)
	l.watch(text)
	l.write(slog.LevelError, text)
}

// Fatalf logs at Error. The server goes on after it, half started: that it must
// be stopped is the business of the one who waits for the start.
func (l *serverLog) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	keepFirst(l.fatal, text)
	l.write(slog.LevelError, text)
}

// Debugf logs at Debug.
func (l *serverLog) Debugf(format string, v ...any) {
	if l.enabled(slog.LevelDebug) {
		l.write(slog.LevelDebug, fmt.Sprintf(format, v...))
	}
}

// Tracef logs at LevelTrace.
func (l *serverLog) Tracef(format string, v ...any) {
	if l.enabled(LevelTrace) {
		l.write(LevelTrace, fmt.Sprintf(format, v...))
	}
}

func (l *serverLog) watch(text string) {
	if report, ok := recogniseDrop(text); ok {
		report.At = time.Now()
		l.drops.offer(report)
	}
}

func keepFirst(slot chan string, text string) {
	select {
	case slot <- text:
	default:
	}
}

// takeFirst returns the line kept in a slot, or "".
func takeFirst(slot chan string) string {
	select {
	case text := <-slot:
		return text
	default:
		return ""
	}
}
