package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"signalbox/audit"
	"signalbox/wire"
)

// Lags that are worth a word, in rows.
const (
	indexLag = 100_000
	foldLag  = 50_000
)

// clockSlack is how far two clocks may differ.
const clockSlack = 2 * time.Second

func (e *examination) register(ctx context.Context) {
	const check = "register"
	if !e.dir {
		return
	}
	path := e.Config.RegisterPath()
	r, err := audit.OpenReader(ctx, path, audit.ReaderOptions{Root: wire.Root(e.Config.Bus.Root)})
	switch {
	case errors.Is(err, audit.ErrNoRegister):
		e.fail(check, `put it back where it was; only for a new bus start "signalbox serve" without it`, "%v", err)
		return
	case errors.Is(err, audit.ErrNewer):
		e.fail(check, "use the newer program", "%v", err)
		return
	case err != nil:
		e.fail(check, "restore the file from a copy if it is damaged; until then stop the bridge and keep the data directory as it is", "%v", err)
		return
	}
	e.reader = r
	var version int64
	var sqlite string
	err = r.View(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT (SELECT max(version_id) FROM goose_db_version), sqlite_version()`).Scan(&version, &sqlite)
	})
	if err == nil {
		e.last, err = r.LastID(ctx)
	}
	if err == nil {
		e.state, err = r.State(ctx)
	}
	if err == nil {
		e.cursors, err = r.Cursors(ctx)
	}
	switch {
	case err != nil:
		e.fail(check, "restore the file from a copy if it is damaged", "%s: %v", path, err)
	case version < audit.SchemaVersion():
		e.warn(check, `the next start of "signalbox serve" brings it up to date`, "%s: schema %d, this program has %d", path, version, audit.SchemaVersion())
	default:
		e.ok(check, "%s: schema %d, %d rows, SQLite %s", path, version, e.last, sqlite)
	}
	e.busTime()
}

// busTime compares the log's clock with this machine's.
func (e *examination) busTime() {
	const check = "clock"
	if e.last == 0 {
		return
	}
	now := time.Now()
	ahead := time.Unix(0, e.state.BusNS).Sub(now)
	if ahead > clockSlack {
		e.warn(check, "set the clock (NTP); deadlines come late until it has caught up", "bus time is %s ahead of this machine's clock, which was set back", ahead.Round(time.Millisecond))
		return
	}
	e.ok(check, "bus time is %s", time.Unix(0, e.state.BusNS).Local().Format("2006-01-02 15:04:05.000"))
}

// integrity lets SQLite look at every page, within a bound: it reads one
// commit's state, and while it does the write-ahead log cannot start over.
func (e *examination) integrity(ctx context.Context) {
	const check = "integrity"
	if e.reader == nil {
		return
	}
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, e.Integrity)
	defer cancel()
	var answer string
	err := e.reader.View(limited, func(tx *sql.Tx) error {
		return tx.QueryRowContext(limited, `PRAGMA quick_check(1)`).Scan(&answer)
	})
	switch {
	case limited.Err() != nil && ctx.Err() == nil:
		e.ok(check, "nothing wrong in %s, the bound of this check; a copy can be checked whole", e.Integrity)
	case err != nil:
		e.fail(check, "stop the bridge, keep the data directory as it is, and restore the register from a copy", "the register cannot be read through: %v", err)
	case answer != "ok":
		e.fail(check, "stop the bridge, keep the data directory as it is, and restore the register from a copy", "the register is damaged: %s", answer)
	default:
		e.ok(check, "every page is sound (%s)", time.Since(start).Round(time.Millisecond))
	}
}

func (e *examination) wal(context.Context) {
	const check = "wal"
	if e.reader == nil {
		return
	}
	size, err := audit.WALBytes(e.reader.Path())
	switch {
	case err != nil:
		e.fail(check, "see to it that this user may read the data directory", "%v", err)
	case size > audit.WALAlarm:
		e.warn(check, "end the process that keeps an old transaction of the register open, such as a forgotten sqlite3 shell", "the write-ahead log has %s", bytes(size))
	default:
		e.ok(check, "the write-ahead log has %s", bytes(size))
	}
}

func (e *examination) index(ctx context.Context) {
	const check = "index"
	if e.reader == nil {
		return
	}
	refs, search := e.reader.Indexed(ctx)
	if !e.Config.Audit.Search {
		search = refs
	}
	path := filepath.Join(filepath.Dir(e.reader.Path()), "index.db")
	lag := max(0, e.last-min(refs, search))
	text := fmt.Sprintf("%d of %d rows, full text %d", min(refs, e.last), e.last, min(search, e.last))
	if !e.Config.Audit.Search {
		text = fmt.Sprintf("%d of %d rows, full text off", min(refs, e.last), e.last)
	}
	switch {
	case !exists(path):
		e.warn(check, "answers are right but slower; the running bridge builds it anew", "%s is not there", path)
	case lag > indexLag:
		e.warn(check, "answers are right but slower until the running bridge has caught up", "%s", text)
	default:
		e.ok(check, "%s", text)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
