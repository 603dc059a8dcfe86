// Package doctor looks at everything that a Signalbox stands on and says, line
// by line, what is well and what to do about what is not. It only reads, and
// works with the bridge running, stopped or crashed.
package doctor

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox/audit"
	"signalbox/cmd/signalbox/config"
)

// Level is how well something is.
type Level string

// The levels. Warn is worth a look, Fail keeps the bus from working or its
// promises from holding.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is one line of the report.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	Todo    string `json:"todo,omitempty"` // what to do; never empty on warn and fail
}

// Report is all findings, in the order in which one needs the other.
type Report struct {
	Level    Level     `json:"level"` // the worst
	Findings []Finding `json:"findings"`
}

// Options say what to look at.
type Options struct {
	Config  config.Config
	Version string // of the program

	// Connect reaches the NATS server, and Named says that one was named
	// explicitly, so that it must answer even while no bridge runs.
	Connect func() (*nats.Conn, error)
	Named   bool

	// Integrity bounds the check of the register's pages, which reads the whole
	// file. Default 20 s.
	Integrity time.Duration
}

// examination is what the checks find out for one another.
type examination struct {
	Options
	findings []Finding

	dir     bool // the data directory is there
	running bool // a bridge holds the data directory
	reader  *audit.Reader
	last    int64 // row
	state   audit.State
	cursors map[string]audit.Cursor
	http    *http.Client
}

// Examine runs all checks. It ends early with ctx.
func Examine(ctx context.Context, o Options) Report {
	if o.Integrity <= 0 {
		o.Integrity = 20 * time.Second
	}
	e := &examination{Options: o, http: &http.Client{Timeout: 2 * time.Second}}
	defer e.close()
	for _, check := range []func(context.Context){
		e.versions, e.directory, e.disk, e.lock, e.register, e.integrity, e.wal, e.index, e.bus, e.health,
	} {
		if ctx.Err() != nil {
			break
		}
		check(ctx)
	}
	r := Report{Level: OK, Findings: e.findings}
	for _, level := range []Level{Warn, Fail} {
		if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level == level }) {
			r.Level = level
		}
	}
	return r
}

func (e *examination) close() {
	if e.reader != nil {
		_ = e.reader.Close() // it only read
	}
	e.http.CloseIdleConnections()
}

func (e *examination) ok(check, format string, args ...any) {
	e.findings = append(e.findings, Finding{Check: check, Level: OK, Message: fmt.Sprintf(format, args...)})
}

func (e *examination) warn(check, todo, format string, args ...any) {
	e.findings = append(e.findings, Finding{Check: check, Level: Warn, Message: fmt.Sprintf(format, args...), Todo: todo})
}

func (e *examination) fail(check, todo, format string, args ...any) {
	e.findings = append(e.findings, Finding{Check: check, Level: Fail, Message: fmt.Sprintf(format, args...), Todo: todo})
}

// bytes is a size for people.
func bytes(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
