package audit_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"signalbox/audit"
	"signalbox/wire"
)

// ledger is a register in a directory of its own, with its writer.
type ledger struct {
	t    testing.TB
	path string
	w    *audit.Register
}

func newLedger(t testing.TB) *ledger {
	t.Helper()
	l := &ledger{t: t, path: filepath.Join(t.TempDir(), "signalbox.db")}
	l.openWriter()
	return l
}

func (l *ledger) openWriter() {
	l.t.Helper()
	w, err := audit.Open(context.Background(), l.path, audit.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.w = w
	l.t.Cleanup(l.stop)
}

// stop closes the writer, as a clean stop does.
func (l *ledger) stop() {
	if l.w == nil {
		return
	}
	if err := l.w.Close(); err != nil {
		l.t.Error(err)
	}
	l.w = nil
}

func (l *ledger) indexPath() string { return filepath.Join(filepath.Dir(l.path), "index.db") }

// write commits rows and what else the batch does. Rows without a place, a
// kind or a leaf get one.
func (l *ledger) write(rows []*audit.Row, also ...func(*audit.Batch) error) {
	l.t.Helper()
	b, err := l.w.Begin()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, row := range rows {
		row.Incarnation = 1
		row.Seq = uint64(b.NextID())
		if row.Kind == "" {
			row.Kind = wire.Msg
		}
		if row.AtNS == 0 {
			row.AtNS = b.NextID() * 1e6
		}
		if row.Leaf == ([32]byte{}) {
			row.Leaf = sha256.Sum256([]byte(row.Subject + row.MessageID + row.TraceID))
		}
		if err := b.Append(row); err != nil {
			l.t.Fatal(err)
		}
	}
	for _, f := range also {
		if err := f(b); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := b.Commit(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *ledger) reader() *audit.Reader {
	l.t.Helper()
	r, err := audit.OpenReader(context.Background(), l.path, audit.ReaderOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			l.t.Error(err)
		}
	})
	return r
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func rowIDs(rows []*audit.Row) []int64 {
	ids := []int64{}
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

func files(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	for _, e := range must[[]os.DirEntry](t)(os.ReadDir(dir)) {
		names = append(names, e.Name())
	}
	return names
}

func TestReaderMakesNoRegister(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "signalbox.db")
	_, err := audit.OpenReader(context.Background(), path, audit.ReaderOptions{})
	if !errors.Is(err, audit.ErrNoRegister) || !strings.Contains(err.Error(), path) {
		t.Fatalf("a missing register: got %v, want ErrNoRegister with its path", err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Fatalf("reading left %v behind", left)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := audit.OpenReader(context.Background(), path, audit.ReaderOptions{}); !errors.Is(err, audit.ErrNoRegister) {
		t.Fatalf("an empty file: got %v, want ErrNoRegister", err)
	}
	if info := must[os.FileInfo](t)(os.Stat(path)); info.Size() != 0 {
		t.Fatalf("reading filled the empty file with %d bytes", info.Size())
	}
}

func TestReaderRefusesNewerRegisterAndLeavesItAsItWas(t *testing.T) {
	l := newLedger(t)
	l.write([]*audit.Row{{Subject: "a"}})
	l.stop()
	execSQL(t, l.path, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, 1)`)
	before := must[[]byte](t)(os.ReadFile(l.path))
	if _, err := audit.OpenReader(context.Background(), l.path, audit.ReaderOptions{}); !errors.Is(err, audit.ErrNewer) {
		t.Fatalf("got %v, want ErrNewer", err)
	}
	if !bytes.Equal(before, must[[]byte](t)(os.ReadFile(l.path))) {
		t.Fatal("the refused register was changed")
	}
}

func execSQL(t testing.TB, path, query string, args ...any) {
	t.Helper()
	db := must[*sql.DB](t)(sql.Open("sqlite", path))
	defer db.Close()
	must[sql.Result](t)(db.Exec(query, args...))
}

func TestReaderRefusesOtherFiles(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, bytes.Repeat([]byte("not a database. "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other.db")
	execSQL(t, other, `CREATE TABLE notes (text)`)
	for _, path := range []string{text, other, dir} {
		before, _ := os.ReadFile(path)
		if _, err := audit.OpenReader(context.Background(), path, audit.ReaderOptions{}); !errors.Is(err, audit.ErrNotRegister) {
			t.Errorf("%s: got %v, want ErrNotRegister", path, err)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
			t.Errorf("%s was changed", path)
		}
	}
}

func TestReaderWorksWhileTheBridgeRunsAfterAStopAndAfterACrash(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	l.write([]*audit.Row{{Subject: "a.1"}, {Subject: "a.2"}})
	r := l.reader()
	l.write([]*audit.Row{{Subject: "a.3"}})
	if row := must[*audit.Row](t)(r.Row(ctx, 3)); row.Subject != "a.3" {
		t.Fatalf("row 3 while the writer is open is %q", row.Subject)
	}
	// A crash leaves the file and its write-ahead log as they are.
	crashed := filepath.Join(t.TempDir(), "signalbox.db")
	for _, end := range []string{"", "-wal"} {
		if err := os.WriteFile(crashed+end, must[[]byte](t)(os.ReadFile(l.path+end)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	after := must[*audit.Reader](t)(audit.OpenReader(ctx, crashed, audit.ReaderOptions{}))
	defer after.Close()
	if last := must[int64](t)(after.LastID(ctx)); last != 3 {
		t.Fatalf("after a crash the last row is %d, want 3", last)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	l.stop()
	if last := must[int64](t)(l.reader().LastID(ctx)); last != 3 {
		t.Fatalf("after a clean stop the last row is %d, want 3", last)
	}
}

func TestReaderReadsWhatTheWriterKeeps(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	refusal := wire.Errorf(wire.BodyInvalid, "not JSON")
	letter := audit.DeadLetter{Recipient: "a", ID: 1, Reason: "refused:BODY_INVALID", FailedAtMS: 7, LastError: "not JSON", Cause: 1}
	later := audit.DeadLetter{Recipient: "b", ID: 1, Reason: "expired", FailedAtMS: 9, LastError: "", Cause: 1}
	move := audit.Transition{Machine: "assign", Key: "j1", From: "queued", To: "running", Reason: "claimed", Cause: 1, AtMS: 5}
	l.write(nil, func(b *audit.Batch) error {
		if err := b.OpenIncarnation(audit.Incarnation{ID: 1, Stream: "BUS", StreamID: "s", FirstSeq: 1, Reason: audit.Created}); err != nil {
			return err
		}
		if err := b.Gap(audit.Gap{Stream: "BUS", Incarnation: 1, From: 4, To: 6, Reason: audit.Missing, AtMS: 3}); err != nil {
			return err
		}
		b.State.BusNS = 42
		return b.SetCursor("BUS", 1, 2)
	})
	l.write([]*audit.Row{{Subject: "a", Header: wire.Header{"K": {"v", "w"}}}, {Subject: "b"}}, func(b *audit.Batch) error {
		return errors.Join(b.Refuse(1, refusal), b.Bury(letter), b.Bury(later), b.Transit(move))
	})
	r := l.reader()
	if c := must[map[string]audit.Cursor](t)(r.Cursors(ctx))["BUS"]; c != (audit.Cursor{Stream: "BUS", Incarnation: 1, StreamID: "s", FirstSeq: 1, Seq: 2}) {
		t.Errorf("cursor %+v", c)
	}
	if s := must[audit.State](t)(r.State(ctx)); s != l.w.State() || s.BusNS != 42 {
		t.Errorf("state %+v, the writer has %+v", s, l.w.State())
	}
	gaps := must[[]audit.Gap](t)(r.Gaps(ctx, 1, 1))
	if len(gaps) != 1 || gaps[0] != (audit.Gap{ID: 1, Stream: "BUS", Incarnation: 1, From: 4, To: 6, Reason: audit.Missing, Cause: 1, AtMS: 3}) {
		t.Errorf("gaps %+v", gaps)
	}
	if gaps := must[[]audit.Gap](t)(r.Gaps(ctx, 2, 9)); len(gaps) != 0 {
		t.Errorf("gaps before other rows %+v", gaps)
	}
	if got := must[audit.Refusal](t)(r.Refusal(ctx, 1)); got.Code != wire.BodyInvalid || got.Error.Message != "not JSON" {
		t.Errorf("refusal %+v", got)
	}
	letters := must[[]audit.DeadLetter](t)(r.DeadLetters(ctx, "", 0))
	if len(letters) != 2 || letters[0] != later || letters[1] != letter {
		t.Errorf("dead letters %+v, want the newest first", letters)
	}
	if letters := must[[]audit.DeadLetter](t)(r.DeadLetters(ctx, "a", 5)); len(letters) != 1 || letters[0] != letter {
		t.Errorf("dead letters of a: %+v", letters)
	}
	move.ID = 1
	for _, list := range [][]audit.Transition{
		must[[]audit.Transition](t)(r.TransitionsBy(ctx, 1)), must[[]audit.Transition](t)(r.TransitionsOf(ctx, "assign", "j1", 0, 0)),
	} {
		if len(list) != 1 || list[0] != move {
			t.Errorf("transitions %+v", list)
		}
	}
	if row := must[*audit.Row](t)(r.RowAtPlace(ctx, 1, 2)); row.ID != 2 {
		t.Errorf("row at 1:2 is %d", row.ID)
	}
	for what, err := range map[string]error{
		"row":     second(r.Row(ctx, 3)),
		"refusal": second(r.Refusal(ctx, 2)),
		"place":   second(r.RowAtPlace(ctx, 1, 3)),
		"log":     second(r.RowAtPlace(ctx, 2, 1)),
	} {
		if !errors.Is(err, audit.ErrNotFound) {
			t.Errorf("%s that is not there: got %v, want ErrNotFound", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestListingOfBodiesIsJSON(t *testing.T) {
	l := newLedger(t)
	bodies := [][]byte{nil, []byte("plain"), {0xff, 0x00, 0xfe}, []byte("a\x00b"), []byte(`{"é":"🚂"}`)}
	var rows []*audit.Row
	for _, b := range bodies {
		rows = append(rows, &audit.Row{Subject: "s", Body: b})
	}
	l.write(rows)
	page := must[audit.Page](t)(l.reader().Log(context.Background(), audit.Filter{}))
	text := must[[]byte](t)(json.Marshal(page))
	var back struct {
		Rows []struct {
			Body       *string `json:"body"`
			BodyBase64 []byte  `json:"body_base64"`
		} `json:"rows"`
		NextAfter int64             `json:"next_after"`
		Gaps      []json.RawMessage `json:"gaps"`
	}
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Rows) != len(bodies) || back.NextAfter != int64(len(bodies)) || back.Gaps == nil {
		t.Fatalf("listing %s", text)
	}
	for i, row := range back.Rows {
		got := row.BodyBase64
		if row.Body != nil {
			got = []byte(*row.Body)
		}
		if !bytes.Equal(got, bodies[i]) {
			t.Errorf("body %d came back as %q, want %q", i, got, bodies[i])
		}
	}
}

func TestReaderWorksWhereItMayNotWriteBesideTheRegister(t *testing.T) {
	l := newLedger(t)
	l.write([]*audit.Row{{Subject: "a"}})
	l.stop()
	// The shared memory of the write-ahead log cannot be made, as on a medium
	// that is read-only.
	if err := os.Mkdir(l.path+"-shm", 0o700); err != nil {
		t.Fatal(err)
	}
	if last := must[int64](t)(l.reader().LastID(context.Background())); last != 1 {
		t.Fatalf("the last row is %d, want 1", last)
	}
}
