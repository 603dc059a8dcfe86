//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The environment of a process that is this test binary once more: what part it
// plays, and the tools that were found or built already.
const (
	partEnv      = "E2E_PART"
	signalboxEnv = "E2E_SIGNALBOX"
	insideEnv    = "E2E_INSIDE"
)

// tool are the programs that the stories use, as absolute paths.
var tool struct{ signalbox, nats, sqlite3, self string }

func TestMain(m *testing.M) {
	if part := os.Getenv(partEnv); part != "" {
		os.Exit(play(part, os.Args[1:]))
	}
	os.Exit(withTools(m))
}

// withTools builds the binary once and runs the stories.
func withTools(m *testing.M) int {
	dir, err := os.MkdirTemp("", "signalbox-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left of it is in the temporary directory
	if err := findTools(dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	// The nats command line keeps contexts in the home directory: a story must
	// not depend on those of the person who runs it.
	for name, value := range map[string]string{"HOME": dir, "XDG_CONFIG_HOME": filepath.Join(dir, "config"), "NATS_URL": "", "NO_COLOR": "1"} {
		if err := os.Setenv(name, value); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			return 1
		}
	}
	return m.Run()
}

func findTools(dir string) error {
	var errs []error
	find := func(name, hint string) string {
		path, err := exec.LookPath(name)
		if err != nil {
			path, err = exec.LookPath(filepath.Join("..", "bin", name))
		}
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("the program %s is not on PATH: %s", name, hint))
		}
		return path
	}
	tool.nats = find("nats", "`make bin/nats` builds it into bin/")
	tool.sqlite3 = find("sqlite3", "`apt-get install sqlite3` installs it")
	var err error
	if tool.self, err = os.Executable(); err != nil {
		errs = append(errs, err)
	}
	if tool.signalbox = os.Getenv(signalboxEnv); tool.signalbox == "" {
		tool.signalbox = filepath.Join(dir, "signalbox")
		build := exec.Command("go", "build", "-o", tool.signalbox, "./cmd/signalbox")
		build.Dir = ".."
		if out, err := build.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("go build ./cmd/signalbox: %w\n%s", err, out))
		}
	}
	return errors.Join(errs...)
}
