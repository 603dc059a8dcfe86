package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lookTime is more than a look at the lock takes.
const lookTime = 20 * time.Millisecond

// Lock is the claim of one process on a data directory. The kernel releases it
// when the process ends, however it ends, so a stale lock does not exist.
type Lock struct{ file *os.File }

// LockedError says who holds a data directory.
type LockedError struct {
	Dir string
	PID int // 0 where the holder has not written it yet
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("data directory %s is in use by process %d; stop it first, or choose another with --data", e.Dir, e.PID)
}

// LockDir claims the data directory, which it makes (0700) where there is
// none. It MUST be called before anything in the directory is opened. The
// error is a *LockedError when another process holds it.
func LockDir(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		// A look at who holds the lock takes it for a moment.
		time.Sleep(lookTime)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
		}
		text, _ := io.ReadAll(io.LimitReader(f, 32)) // only for the message
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return nil, &LockedError{Dir: dir, PID: pid}
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(fmt.Errorf("lock data directory %s: %w", dir, err), f.Close())
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, errors.Join(fmt.Errorf("lock data directory %s: %w", dir, err), f.Close())
	}
	return &Lock{file: f}, nil
}

// Release gives the directory up.
func (l *Lock) Release() error { return l.file.Close() }
