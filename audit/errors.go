package audit

import (
	"errors"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// Errors that a caller branches on.
var (
	// ErrNewer means that the register was made by a newer version. Nothing
	// was touched.
	ErrNewer = errors.New("the register was made by a newer version of signalbox")
	// ErrNoRegister means that there is no register where one was expected.
	ErrNoRegister = errors.New("no register")
	// ErrNotRegister means that the file is a database, but not a register.
	ErrNotRegister = errors.New("the file is not a signalbox register")
	// ErrRetry marks an error of Options.OnStep as one after which the
	// transaction may be tried again.
	ErrRetry = errors.New("the register does not take it now")
	// ErrFatal marks what must stop the loop: the register is damaged or gone,
	// or it is unknown whether a commit happened. The next start reads the
	// cursor again and goes on from there.
	ErrFatal = errors.New("the register cannot go on")
)

// fatalError marks its cause as ErrFatal.
type fatalError struct {
	what  string
	cause error
}

func (e *fatalError) Error() string   { return ErrFatal.Error() + ": " + e.what + ": " + e.cause.Error() }
func (e *fatalError) Unwrap() []error { return []error{ErrFatal, e.cause} }

// primary is the primary result code of SQLite in err, or 0.
func primary(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// Retryable reports whether a transaction that failed with err may be tried
// again as it was: the disk is full or fails, the file is locked or read-only,
// memory is short. Nothing of it was kept.
func Retryable(err error) bool {
	if errors.Is(err, ErrFatal) {
		return false
	}
	if errors.Is(err, ErrRetry) {
		return true
	}
	switch primary(err) {
	case lib.SQLITE_FULL, lib.SQLITE_IOERR, lib.SQLITE_BUSY, lib.SQLITE_NOMEM,
		lib.SQLITE_READONLY, lib.SQLITE_CANTOPEN:
		return true
	}
	return false
}

// judge marks what must stop the loop.
func judge(what string, err error) error {
	switch primary(err) {
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return &fatalError{what, err}
	}
	return err
}
