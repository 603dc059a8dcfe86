package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"
	_ "modernc.org/sqlite"

	"signalbox/audit"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"signalbox": func() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// TestStories runs the program as its users do. Each story has a directory of
// its own with the data directory "data".
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("SIGNALBOX_NATS_EMBEDDED_LISTEN", "127.0.0.1:0")
			env.Setenv("SIGNALBOX_HTTP_LISTEN", "")
			env.Setenv("SIGNALBOX_AUDIT_MIN_FREE", "1MiB")
			env.Setenv("TZ", "UTC")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await": await, "publish": publish, "sql": execSQL, "consecutive": consecutive, "exits": exits,
			"registered": registered,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// await FILE [PATTERN] waits until a file is there and matches.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: await FILE [PATTERN]")
	}
	pattern := regexp.MustCompile("(?m)" + strings.Join(args[1:], ""))
	var text []byte
	until(func() bool {
		var err error
		text, err = os.ReadFile(ts.MkAbs(args[0]))
		return err == nil && pattern.Match(text)
	}, func() { ts.Fatalf("%s did not come to match %q:\n%s", args[0], pattern, text) })
}

func until(holds func() bool, otherwise func()) {
	bound := time.NewTimer(20 * time.Second)
	defer bound.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-bound.C:
			otherwise()
			return
		case <-tick.C:
		}
	}
}

// publish SUBJECT FILE [TIMES] publishes a file's bytes to the running bus and
// waits for the proof of capture each time.
func publish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: publish SUBJECT FILE [TIMES]")
	}
	times := 1
	if len(args) == 3 {
		n, err := strconv.Atoi(args[2])
		ts.Check(err)
		times = n
	}
	body, err := strconv.Unquote(`"` + strings.TrimSpace(ts.ReadFile(args[1])) + `"`)
	ts.Check(err)
	nc, err := nats.Connect(strings.TrimSpace(ts.ReadFile("data/nats.url")))
	ts.Check(err)
	defer nc.Close()
	for range times {
		reply, err := nc.Request(args[0], []byte(body), 5*time.Second)
		ts.Check(err)
		if !bytes.Contains(reply.Data, []byte(`"seq"`)) {
			ts.Fatalf("the stream did not take it: %s", reply.Data)
		}
	}
}

// registered ID waits until the register has the row.
func registered(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: registered ID")
	}
	id, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	r, err := audit.OpenReader(context.Background(), ts.MkAbs("data/signalbox.db"), audit.ReaderOptions{})
	ts.Check(err)
	defer r.Close()
	var last int64
	until(func() bool {
		last, err = r.LastID(context.Background())
		ts.Check(err)
		return last >= id
	}, func() { ts.Fatalf("the last row is %d", last) })
}

// sql FILE STATEMENT changes a database that no bridge has open.
func execSQL(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: sql FILE STATEMENT")
	}
	db, err := sql.Open("sqlite", ts.MkAbs(args[0]))
	ts.Check(err)
	_, err = db.Exec(args[1])
	ts.Check(err)
	ts.Check(db.Close())
}

// consecutive FILE FIRST LAST says that the JSON lines of a file are the rows
// FIRST to LAST, each once and in order.
func consecutive(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: consecutive FILE FIRST LAST")
	}
	first, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	last, err := strconv.ParseInt(args[2], 10, 64)
	ts.Check(err)
	want := first
	lines := bufio.NewScanner(strings.NewReader(ts.ReadFile(args[0])))
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var row struct{ ID int64 }
		ts.Check(json.Unmarshal(lines.Bytes(), &row))
		if row.ID != want {
			ts.Fatalf("row %d stands where %d must", row.ID, want)
		}
		want++
	}
	if want-1 != last {
		ts.Fatalf("the last row is %d, not %d", want-1, last)
	}
}

// exits CODE COMMAND… runs a command that must end with the code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if exit, ok := err.(interface{ ExitCode() int }); ok {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("%s ended with %d, not %s", strings.Join(args[1:], " "), code, args[0])
	}
}
