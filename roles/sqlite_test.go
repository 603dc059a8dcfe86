package roles

import (
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "modernc.org/sqlite"
)

// openDB makes a database in memory with the register's tables. It has one
// connection: a statement while rows are being read would wait for ever, as it
// would in the register's transaction.
func openDB(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	files, err := filepath.Glob("../audit/migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no migrations: %v", err)
	}
	slices.Sort(files)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		_, up, _ := strings.Cut(string(text), "-- +goose Up")
		up = strings.NewReplacer("-- +goose StatementBegin", "", "-- +goose StatementEnd", "").Replace(up)
		if _, err := db.Exec(up); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	if _, err := db.Exec(`INSERT INTO bridge_state (id, register_id, bus_ns) VALUES (1, 'r', ?)`, int64(startMS)*1_000_000); err != nil {
		t.Fatal(err)
	}
	return db
}

// Every look-up that a step does for each message or notice is by an index.
func TestStepsReadByIndexes(t *testing.T) {
	db := openDB(t)
	for query, index := range map[string]string{
		selectRole: "PRIMARY KEY", selectVacant: "roles_vacant", selectHeldBy: "roles_holder", selectActive: "roles_holder",
		selectDue: "roles_due", selectOpen: "roles_open", countOpen: "roles_open", selectCandidate: "PRIMARY KEY",
		selectCandidates: "PRIMARY KEY", selectCandidacies: "roles_candidates_agent",
	} {
		args := make([]any, strings.Count(query, "?"))
		for i := range args {
			args[i] = 1
		}
		var id, parent, unused int
		var detail string
		if err := db.QueryRow("EXPLAIN QUERY PLAN "+query, args...).Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		if !strings.Contains(detail, index) {
			t.Errorf("%s is read by %q, not by %s", query, detail, index)
		}
	}
}
