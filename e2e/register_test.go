//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sqlite asks the register with the stock shell, read-only: rows as lines,
// columns separated by |.
func sqlite(t *testing.T, file, query string) []string {
	t.Helper()
	out, err := trySQLite(file, query)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func trySQLite(file, query string) ([]string, error) {
	out, err := exec.Command(tool.sqlite3, "-readonly", "-batch", "-cmd", ".timeout 10000", file, query).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("sqlite3 %s: %w: %s", query, err, out)
	}
	text := strings.TrimRight(string(out), "\n")
	if text == "" {
		return nil, nil
	}
	return strings.Split(text, "\n"), nil
}

// number asks for one number.
func number(t *testing.T, file, query string) int {
	t.Helper()
	n, err := tryNumber(file, query)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func tryNumber(file, query string) (int, error) {
	lines, err := trySQLite(file, query)
	if err != nil {
		return 0, err
	}
	if len(lines) != 1 {
		return 0, fmt.Errorf("sqlite3 %s: %d rows", query, len(lines))
	}
	return strconv.Atoi(lines[0])
}

// counts complains unless the query gives the number.
func counts(file, query string, want int) func() error {
	return func() error {
		n, err := tryNumber(file, query)
		if err == nil && n != want {
			err = fmt.Errorf("%s gives %d and not %d", query, n, want)
		}
		return err
	}
}

// change writes to a database with the stock shell, as an operator could.
func change(t *testing.T, file, statement string) {
	t.Helper()
	out, err := exec.Command(tool.sqlite3, "-batch", "-bail", file, statement).CombinedOutput()
	if err != nil {
		t.Fatalf("sqlite3 %s: %v: %s", statement, err, out)
	}
}

// holder is a sqlite3 shell that keeps a transaction open.
type holder struct {
	*process
	in io.WriteCloser
}

// hold begins a transaction with the statements, in a shell of its own, and
// returns when it stands.
func hold(t *testing.T, file, statements string) *holder {
	t.Helper()
	cmd := exec.Command(tool.sqlite3, "-batch", "-bail", file)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	held := make(chan struct{}, 1)
	h := &holder{in: in, process: begin(t, "sqlite3", cmd, func(line string) {
		if line == "held" {
			held <- struct{}{}
		}
	})}
	if _, err := io.WriteString(in, ".timeout 20000\n"+statements+"\nSELECT 'held';\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-held:
	case <-time.After(25 * time.Second):
		t.Fatalf("sqlite3 could not begin its transaction: %v", h.said())
	}
	return h
}

// release ends the transaction, and the shell.
func (h *holder) release() {
	h.t.Helper()
	if _, err := io.WriteString(h.in, "ROLLBACK;\n.quit\n"); err != nil {
		h.t.Fatal(err)
	}
	if code := h.exit(10 * time.Second); code != 0 {
		h.t.Fatalf("the shell that held a transaction ended with %d: %v", code, h.said())
	}
}

// row is a register row as the command line prints it.
type row struct {
	ID          int64               `json:"id"`
	Incarnation int64               `json:"incarnation"`
	Seq         uint64              `json:"seq"`
	Kind        string              `json:"kind"`
	Subject     string              `json:"subject"`
	MessageID   string              `json:"message_id"`
	Type        string              `json:"type"`
	From        string              `json:"from"`
	To          string              `json:"to"`
	Headers     map[string][]string `json:"headers"`
	Body        *string             `json:"body"`
	Base64      *string             `json:"body_base64"`
	Gap         *struct {
		Stream string `json:"stream"`
		Reason string `json:"reason"`
	} `json:"gap"`
}

// bytes are the body as it was published.
func (r row) bytes(t *testing.T) []byte {
	t.Helper()
	switch {
	case r.Body != nil:
		return []byte(*r.Body)
	case r.Base64 != nil:
		b, err := base64.StdEncoding.DecodeString(*r.Base64)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	t.Fatalf("row %d has no body at all", r.ID)
	return nil
}

// logRows asks signalbox log.
func logRows(t *testing.T, data string, args ...string) []row {
	t.Helper()
	out := signalbox(t, 0, append([]string{"log", "--data", data, "-o", "jsonl"}, args...)...)
	var rows []row
	lines := bufio.NewScanner(strings.NewReader(out))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("signalbox log: %v: %s", err, lines.Text())
		}
		rows = append(rows, r)
	}
	return rows
}

// signalbox runs a command to its end and gives what it printed; the exit code
// must be the wanted one. With another than 0 it gives what was complained.
func signalbox(t *testing.T, want int, args ...string) string {
	t.Helper()
	var out, complaint bytes.Buffer
	cmd := exec.Command(tool.signalbox, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatalf("signalbox %v: %v", args, err)
	}
	if code := cmd.ProcessState.ExitCode(); code != want {
		t.Fatalf("signalbox %v: exit code %d and not %d: %s", args, code, want, complaint.String())
	}
	if want != 0 {
		return complaint.String()
	}
	return out.String()
}

// natsCLI runs the stock command line and gives what it printed.
func natsCLI(t *testing.T, url string, stdin []byte, args ...string) string {
	t.Helper()
	cmd := exec.Command(tool.nats, append([]string{"--server", url}, args...)...)
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nats %v: %v\n%s", args, err, out)
	}
	return string(out)
}
