package audit

import (
	"path/filepath"
	"strings"
	"testing"

	"signalbox/wire"
)

// A reply means that the row is on disk: the writer commits with an fsync.
func TestTheWriterCommitsWithAnFsync(t *testing.T) {
	r, err := Open(t.Context(), filepath.Join(t.TempDir(), "signalbox.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var synchronous int
	var journal string
	if err := r.QueryRow("PRAGMA synchronous").Scan(&synchronous); err != nil {
		t.Fatal(err)
	}
	if err := r.QueryRow("PRAGMA journal_mode").Scan(&journal); err != nil {
		t.Fatal(err)
	}
	const full = 2
	if synchronous != full || journal != "wal" {
		t.Errorf("synchronous is %d and the journal %q, want %d and wal", synchronous, journal, full)
	}
}

// What the register says once, it says for ever.
func TestRowsTransitionsAndGapsNeverChange(t *testing.T) {
	r, err := Open(t.Context(), filepath.Join(t.TempDir(), "signalbox.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := r.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		b.Gap(Gap{Stream: "BUS", Incarnation: 1, From: 1, To: 2, Reason: Missing}),
		b.Append(&Row{Incarnation: 1, Seq: 3, Kind: wire.Msg, Subject: "bus.msg.a.agent.b", MessageID: "m", Type: wire.TypeEvent}),
		b.Transit(Transition{Machine: "m", Key: "k", To: "new", Cause: 1}),
		b.Commit(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, query := range []string{
		`UPDATE messages SET subject = 'x'`, `DELETE FROM messages`, `UPDATE transitions SET to_state = 'x'`, `DELETE FROM transitions`,
		`UPDATE gaps SET reason = 'x'`, `DELETE FROM gaps`,
	} {
		if _, err := r.Exec(query); err == nil || !strings.Contains(err.Error(), "immutable") {
			t.Errorf("%s: %v, want that it is immutable", query, err)
		}
	}
}
