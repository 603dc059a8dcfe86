package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Bounds on the processes that the bench starts.
const (
	readyWithin = time.Minute
	stopWithin  = 40 * time.Second // then it is killed
)

// process is a process of this program that the bench has started.
type process struct {
	name  string
	cmd   *exec.Cmd
	out   *tail
	ended chan struct{}
	err   error // of Wait; after ended
}

// start starts this program anew. When ctx ends it is told to stop.
func start(ctx context.Context, name, program string, args []string, pipes func(*exec.Cmd) error) (*process, error) {
	p := &process{name: name, out: &tail{}, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, program, args...)
	p.cmd.Env = environment()
	p.cmd.Stderr = p.out
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopWithin
	if pipes != nil {
		if err := pipes(p.cmd); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { // ends with the process, which stop waits for
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// environment is ours without what would configure Signalbox: the bench
// measures the defaults.
func environment() []string {
	var kept []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "SIGNALBOX_") {
			kept = append(kept, kv)
		}
	}
	return kept
}

// stop ends the process: it is asked to, and killed when it does not.
func (p *process) stop() error {
	// Asking fails when the process has ended by itself; Wait tells how.
	return p.end(func() { _ = p.cmd.Process.Signal(syscall.SIGTERM) })
}

func (p *process) end(ask func()) error {
	ask()
	bound := time.NewTimer(stopWithin)
	defer bound.Stop()
	select {
	case <-p.ended:
		return p.failure()
	case <-bound.C:
	}
	_ = p.cmd.Process.Kill() // its own id; it may have ended just now
	<-p.ended
	return fmt.Errorf("%s did not stop within %s and was killed; its last words: %s", p.name, stopWithin, p.out)
}

// failure is how the process failed; it has ended.
func (p *process) failure() error {
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w; its last words: %s", p.name, p.err, p.out)
}

// check fails when the process has ended before it was told to.
func (p *process) check() error {
	select {
	case <-p.ended:
		if err := p.failure(); err != nil {
			return err
		}
		return fmt.Errorf("%s has ended early; its last words: %s", p.name, p.out)
	default:
		return nil
	}
}

// serveNode starts a node in dir and gives its client's address.
func serveNode(ctx context.Context, o Options, dir string) (*process, string, error) {
	args := []string{"serve", "--data", dir, "--listen", "127.0.0.1:0", "--set", "http.listen="}
	for _, kv := range o.Set {
		args = append(args, "--set", kv)
	}
	p, err := start(ctx, "the node", o.Program, args, nil)
	if err != nil {
		return nil, "", err
	}
	var url string
	wait := backoff.WithContext(backoff.NewExponentialBackOff(backoff.WithInitialInterval(5*time.Millisecond),
		backoff.WithMaxInterval(100*time.Millisecond), backoff.WithMaxElapsedTime(readyWithin)), ctx)
	err = backoff.Retry(func() error {
		if err := p.check(); err != nil {
			return backoff.Permanent(err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, "nats.url"))
		if url = strings.TrimSpace(string(raw)); err == nil && url == "" {
			err = errors.New("nats.url is empty")
		}
		return err
	}, wait)
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("start the node: %w", err), p.stop())
	}
	return p, url, nil
}

// tail keeps the end of what a process says.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.text) == 0 {
		return "none"
	}
	return string(bytes.TrimSpace(t.text))
}

// memoryOf is what a process holds in memory, now and at its most, in bytes.
// It fails where there is no /proc.
func memoryOf(pid int) (now, most int64, err error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		var into *int64
		switch fields[0] {
		case "VmRSS:":
			into = &now
		case "VmHWM:":
			into = &most
		default:
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", fields[0], err)
		}
		*into = kib << 10
	}
	return now, most, nil
}
