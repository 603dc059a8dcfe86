//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// readyWithin bounds a start, recovery of the streams included.
const readyWithin = 30 * time.Second

// ready is the line that serve logs when it takes requests.
type ready struct {
	Msg  string `json:"msg"`
	NATS string `json:"nats"`
	HTTP string `json:"http"`
	Rows int64  `json:"rows"`
}

// process is a program that a story started: its lines, and how it ended.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and all its lines are read

	mu    sync.Mutex // guards what follows
	lines []string
	heard func(string)
}

// begin starts a command whose standard error (and output, where the command has
// none) is read line by line. It is killed with the story at the latest.
func begin(t *testing.T, name string, cmd *exec.Cmd, heard func(string)) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, done: make(chan struct{}), heard: heard}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = w
	if cmd.Stdout == nil {
		cmd.Stdout = w
	}
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go p.read(r)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			p.show()
		}
	})
	return p
}

func (p *process) read(r io.ReadCloser) {
	defer close(p.done)
	defer r.Close()
	lines := bufio.NewReaderSize(r, 1<<16)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimRight(line, "\n"); line != "" {
			p.mu.Lock()
			p.lines = append(p.lines, line)
			p.mu.Unlock()
			if p.heard != nil {
				p.heard(line)
			}
		}
		if err != nil {
			_ = p.cmd.Wait() // the state says how it ended
			return
		}
	}
}

// said are the lines so far.
func (p *process) said() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// show logs the end of what the process said, for a story that failed.
func (p *process) show() {
	lines := slices.DeleteFunc(p.said(), func(line string) bool {
		first, _, _ := strings.Cut(line, " ")
		return slices.Contains([]string{"acked", "answered", "refused"}, first) ||
			strings.Contains(line, `"level":"INFO"`) && strings.Contains(line, `"source":"nats-server"`)
	})
	for _, line := range lines[max(0, len(lines)-30):] {
		p.t.Logf("%s[%d] %.600s", p.name, p.cmd.Process.Pid, line)
	}
}

func (p *process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("%s to %s: %v", s, p.name, err)
	}
}

// kill ends the process with SIGKILL, and waits.
func (p *process) kill() {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("kill %s: %v", p.name, err)
	}
	<-p.done
}

// exit waits for the end and gives the exit code, -1 for a signal.
func (p *process) exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("%s has not ended within %s", p.name, within)
		return -1
	}
}

// running fails when the process has ended.
func (p *process) running() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended: %s", p.name, p.cmd.ProcessState)
	default:
		return nil
	}
}

// box is a signalbox serve.
type box struct {
	*process
	data  string
	args  []string
	begun chan ready
	ready ready
}

// launch starts serve on a data directory and does not wait. Settings are
// key=value; the address is that of addr, or a free one where it is empty.
func launch(t *testing.T, data, addr string, settings ...string) *box {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	args := []string{"serve", "--data", data, "--set", "http.listen=127.0.0.1:0"}
	if !slices.ContainsFunc(settings, func(s string) bool { return strings.HasPrefix(s, "nats.url=") }) {
		args = append(args, "--listen", addr)
	}
	for _, s := range settings {
		if strings.HasPrefix(s, "--") {
			args = append(args, s)
		} else {
			args = append(args, "--set", s)
		}
	}
	b := &box{data: data, args: args, begun: make(chan ready, 1)}
	b.process = begin(t, "signalbox", exec.Command(tool.signalbox, args...), func(line string) {
		var r ready
		if json.Unmarshal([]byte(line), &r) == nil && r.Msg == "signalbox is ready" {
			b.begun <- r
		}
	})
	return b
}

// serve starts serve and waits until it takes requests.
func serve(t *testing.T, data, addr string, settings ...string) *box {
	t.Helper()
	b := launch(t, data, addr, settings...)
	b.awaitReady()
	return b
}

func (b *box) awaitReady() {
	b.t.Helper()
	select {
	case b.ready = <-b.begun:
	case <-b.done:
		b.t.Fatalf("signalbox ended instead of being ready: %s\n%s", b.cmd.ProcessState, strings.Join(b.said(), "\n"))
	case <-time.After(readyWithin):
		b.t.Fatalf("signalbox was not ready within %s", readyWithin)
	}
}

// addr is where its NATS server listens.
func (b *box) addr() string { return strings.TrimPrefix(b.ready.NATS, "nats://") }

// register is its file.
func (b *box) register() string { return filepath.Join(b.data, "signalbox.db") }

// stop ends it with SIGTERM; the exit code must be 0.
func (b *box) stop() {
	b.t.Helper()
	b.signal(syscall.SIGTERM)
	if code := b.exit(30 * time.Second); code != 0 {
		b.t.Fatalf("after SIGTERM the exit code is %d\n%s", code, strings.Join(b.said(), "\n"))
	}
}

// red are the parts that /healthz calls red, by name.
func (b *box) red() (map[string]string, error) {
	body, status, err := b.fetch("/healthz")
	if err != nil {
		return nil, err
	}
	var h struct{ Red map[string]string }
	if err := json.Unmarshal(body, &h); err != nil {
		return nil, err
	}
	if (status == http.StatusOK) != (len(h.Red) == 0) {
		return nil, fmt.Errorf("healthz answers %d and says %s", status, body)
	}
	return h.Red, nil
}

// green complains when something is red.
func (b *box) green() error {
	red, err := b.red()
	if err == nil && len(red) > 0 {
		err = fmt.Errorf("red: %v", red)
	}
	return err
}

// isRed complains when none of the parts is red.
func (b *box) isRed(parts ...string) error {
	red, err := b.red()
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, ok := red[p]; ok {
			return nil
		}
	}
	return fmt.Errorf("none of %v is red: %v", parts, red)
}

// metric is the value of a metric without labels.
func (b *box) metric(name string) (float64, error) {
	body, _, err := b.fetch("/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

func (b *box) fetch(path string) ([]byte, int, error) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + b.ready.HTTP + path)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return body, resp.StatusCode, err
}
