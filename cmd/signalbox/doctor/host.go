package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"signalbox/audit"
	"signalbox/bridge"
)

// private are the permissions that nobody but the owner may have.
const private fs.FileMode = 0o077

func (e *examination) versions(context.Context) {
	text := fmt.Sprintf("signalbox %s, schema %d, %s %s/%s", e.Version, audit.SchemaVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			switch m.Path {
			case "github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go", "modernc.org/sqlite":
				text += ", " + strings.TrimSuffix(strings.TrimPrefix(m.Path, "github.com/nats-io/"), "/v2") + " " + m.Version
			}
		}
	}
	e.ok("versions", "%s", text)
}

// directory looks at who else may read the files. A directory that is closed
// to others protects all that is in it.
func (e *examination) directory(context.Context) {
	const check = "data"
	dir := e.Config.DataDir
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.fail(check, `start "signalbox serve" once, or name the right directory with --data`, "there is no data directory %s", dir)
		return
	case err != nil:
		e.fail(check, "see to it that this user may read the data directory", "%v", err)
		return
	case !info.IsDir():
		e.fail(check, "name a directory with --data", "%s is no directory", dir)
		return
	}
	e.dir = true
	if info.Mode()&private == 0 {
		e.ok(check, "%s, for its owner only", dir)
		return
	}
	register := e.Config.RegisterPath()
	for _, path := range []string{register, register + "-wal", filepath.Join(filepath.Dir(register), "index.db"), filepath.Join(dir, "nats.url"), filepath.Join(dir, "jetstream")} {
		if info, err := os.Stat(path); err == nil && info.Mode()&private != 0 {
			e.warn(check, fmt.Sprintf("chmod 0700 %s", dir), "others may read %s (mode %04o)", path, info.Mode().Perm())
			return
		}
	}
	e.warn(check, fmt.Sprintf("chmod 0700 %s", dir), "others may look into %s (mode %04o)", dir, info.Mode().Perm())
}

func (e *examination) disk(context.Context) {
	const check = "disk"
	if !e.dir {
		return
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(e.Config.DataDir, &s); err != nil {
		e.fail(check, "see to it that the file system of the data directory is mounted", "free space of %s is unknown: %v", e.Config.DataDir, err)
		return
	}
	free, total := int64(s.Bavail)*int64(s.Bsize), int64(s.Blocks)*int64(s.Bsize)
	floor := bridge.Floor(int64(e.Config.Audit.MinFree), total)
	switch {
	case free < floor:
		e.fail(check, "free some space, or lower audit.min_free", "%s free, requests are refused below %s", bytes(free), bytes(floor))
	case free < 2*floor:
		e.warn(check, "free some space, or lower audit.min_free", "%s free, requests are refused below %s", bytes(free), bytes(floor))
	default:
		e.ok(check, "%s of %s free, requests are refused below %s", bytes(free), bytes(total), bytes(floor))
	}
}

func (e *examination) lock(context.Context) {
	const check = "lock"
	if !e.dir {
		return
	}
	held, pid, err := locked(filepath.Join(e.Config.DataDir, "lock"))
	_, urlErr := os.Stat(filepath.Join(e.Config.DataDir, "nats.url"))
	e.running = held
	switch {
	case err != nil:
		e.fail(check, "run doctor as the user that runs the bridge", "it is unknown whether a bridge runs: %v", err)
	case held:
		e.ok(check, "a bridge runs as process %d", pid)
	case urlErr == nil:
		e.warn(check, `start "signalbox serve"; it recovers by itself`, "the bridge (process %d) ended without stopping: a crash, a kill, or the machine went down", pid)
	default:
		e.warn(check, `start "signalbox serve"`, "no bridge runs here")
	}
}

// locked reports whether a process holds the lock file, and the process that
// held it last. It asks with a shared lock that it gives back at once.
func locked(path string) (held bool, pid int, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, 0, nil
	}
	if err != nil {
		return false, 0, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return false, 0, err
	}
	pid, _ = strconv.Atoi(strings.TrimSpace(string(text))) // 0 where it is not written yet
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, pid, nil
	}
	return false, pid, err
}
