//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The README's tour is run as it is written. All its fenced blocks marked
// console are one story, in their order:
//
//	```console
//	$ signalbox serve 2> serve.log &
//	$ nats pub bus.msg.me.agent.you hello
//	12:00:00 Published 5 bytes to "bus.msg.me.agent.you"
//	```
//
// A line that begins with "$ " is a command; one that ends in a backslash goes on
// in the next line. All commands run in one bash, so that variables and jobs in
// the background last, in an empty directory, with the programs signalbox and
// nats on PATH, and with a network of their own, so that ports may be the usual
// ones. A command must succeed. The lines up to the next command are what it
// prints, on either output; in them … stands for anything within a line, and a
// line that is only … for any number of lines. A line is compared without the
// blanks at its end, and empty lines at the end of the output do not count. A
// command of which no output is shown may print what it likes.
const tour = "../README.md"

// step is a command of the tour and what it is said to print.
type step struct {
	line    int
	command string
	output  []string
}

// stepsOf reads the console blocks of a text.
func stepsOf(text string) ([]step, error) {
	var steps []step
	inside, goesOn := false, false
	for n, line := range strings.Split(text, "\n") {
		fence := strings.HasPrefix(line, "```")
		switch {
		case fence && !inside:
			inside = strings.TrimSpace(line) == "```console"
		case fence:
			inside, goesOn = false, false
		case !inside:
		case goesOn:
			steps[len(steps)-1].command += "\n" + line
			goesOn = strings.HasSuffix(line, `\`)
		case strings.HasPrefix(line, "$ "):
			steps = append(steps, step{line: n + 1, command: line[2:]})
			goesOn = strings.HasSuffix(line, `\`)
		case len(steps) == 0:
			return nil, fmt.Errorf("line %d: output before the first command", n+1)
		default:
			last := &steps[len(steps)-1]
			last.output = append(last.output, strings.TrimRight(line, " \t"))
		}
	}
	return steps, nil
}

// matches says whether lines are what the pattern shows.
func matches(pattern, lines []string) bool {
	if len(pattern) == 0 {
		return len(lines) == 0
	}
	if pattern[0] == "…" {
		for n := range len(lines) + 1 {
			if matches(pattern[1:], lines[n:]) {
				return true
			}
		}
		return false
	}
	if len(lines) == 0 {
		return false
	}
	parts := strings.Split(pattern[0], "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	ok, err := regexp.MatchString("^"+strings.Join(parts, ".*")+"$", lines[0])
	return err == nil && ok && matches(pattern[1:], lines[1:])
}

// trimmed are the lines of an output without blanks at their ends and without
// empty lines at the end.
func trimmed(lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = strings.TrimRight(line, " \t\r")
	}
	for len(out) > 0 && out[len(out)-1] == "" {
		out = out[:len(out)-1]
	}
	return out
}

// shell is a bash that is given one command after the other.
type shell struct {
	in    io.Writer
	lines chan string
}

const endMark = "-- end of step --"

// run runs a command to its end and gives what it printed and its status.
func (s *shell) run(command string) (lines []string, status string, err error) {
	if _, err := fmt.Fprintf(s.in, "%s\n{ status=$?; } 2>/dev/null\necho; echo '%s' $status\n", command, endMark); err != nil {
		return nil, "", err
	}
	late := time.NewTimer(60 * time.Second)
	defer late.Stop()
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				return lines, "", io.ErrUnexpectedEOF
			}
			if code, ok := strings.CutPrefix(line, endMark+" "); ok {
				return trimmed(lines), code, nil
			}
			lines = append(lines, line)
		case <-late.C:
			return lines, "", fmt.Errorf("no end within 60 s")
		}
	}
}

// startShell starts it in an empty directory. It reads its commands from another
// file than the standard input, which the commands must not eat.
func startShell(t *testing.T) *shell {
	t.Helper()
	bin := t.TempDir()
	for name, target := range map[string]string{"signalbox": tool.signalbox, "nats": tool.nats, "sqlite3": tool.sqlite3} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	commands, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, printed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	bash := exec.Command("bash", "--norc", "/dev/fd/3")
	bash.Dir = t.TempDir()
	bash.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LC_ALL=C.UTF-8", "COLUMNS=120")
	bash.ExtraFiles = []*os.File{commands}
	bash.Stdout, bash.Stderr = printed, printed
	bash.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := bash.Start(); err != nil {
		t.Fatal(err)
	}
	commands.Close()
	printed.Close()
	s := &shell{in: in, lines: make(chan string, 1024)}
	go func() {
		defer close(s.lines)
		defer out.Close()
		text := bufio.NewScanner(out)
		text.Buffer(nil, 16<<20)
		for text.Scan() {
			s.lines <- text.Text()
		}
	}()
	t.Cleanup(func() {
		in.Close()
		// What the tour left running in the background is in bash's group.
		if err := syscall.Kill(-bash.Process.Pid, syscall.SIGKILL); err != nil {
			t.Errorf("end the tour: %v", err)
		}
		_ = bash.Wait() // killed
		for range s.lines {
			continue // read to its end, so that the reader ends
		}
	})
	return s
}

// TestReadmeTour: what the README shows is what happens.
func TestReadmeTour(t *testing.T) {
	text, err := os.ReadFile(tour)
	if err != nil {
		t.Fatalf("the README is missing: %v", err)
	}
	steps, err := stepsOf(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) == 0 {
		t.Fatal("the README has no block marked console: its tour is not tested")
	}
	if !isolated(t, syscall.CLONE_NEWNET) {
		return
	}
	s := startShell(t)
	for _, step := range steps {
		lines, status, err := s.run(step.command)
		if err != nil {
			t.Fatalf("README line %d: $ %s: %v\n%s", step.line, step.command, err, strings.Join(lines, "\n"))
		}
		if status != "0" {
			t.Errorf("README line %d: $ %s\nends with status %s:\n%s", step.line, step.command, status, strings.Join(lines, "\n"))
		}
		if want := trimmed(step.output); len(want) > 0 && !matches(want, lines) {
			t.Errorf("README line %d: $ %s\nprints\n%s\nand not\n%s", step.line, step.command, strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestTourConvention: the reader of the tour does what its description says.
func TestTourConvention(t *testing.T) {
	steps, err := stepsOf("text\n```\n$ no\n```\n```sh\n$ neither\n```\n```console\n$ one \\\n  two\na … c\n…\nend\n\n$ three\n```\n")
	if err != nil || len(steps) != 2 || steps[0].command != "one \\\n  two" || steps[1].command != "three" {
		t.Fatalf("%+v (%v)", steps, err)
	}
	want := trimmed(steps[0].output)
	for output, ok := range map[string]bool{"a b c\nend": true, "a  c\n1\n2\nend": true, "a b\nend": false, "a b c": false, "x a b c\nend": false, "a b c\nend\nmore": false} {
		if matches(want, strings.Split(output, "\n")) != ok {
			t.Errorf("%q matches: %t", output, !ok)
		}
	}
}
