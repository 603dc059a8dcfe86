package audit

import (
	"database/sql"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"
)

// M14: what a failed migration began is undone; the register stays as the
// version before had it, and opens as before.
func TestAFailedMigrationLeavesTheOldSchemaWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signalbox.db")
	r, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	before := r.State()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{}
	known, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range known {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	files["migrations/99999_broken.sql"] = &fstest.MapFile{Data: []byte(
		"-- +goose Up\nCREATE TABLE half (id INTEGER) STRICT;\nALTER TABLE messages ADD COLUMN more TEXT;\nINSERT INTO nowhere VALUES (1);\n")}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	objects := func() (names []string) {
		names, err := collect(t.Context(), db, "schema", func(scan func(...any) error) (s string, err error) {
			return s, scan(&s)
		}, `SELECT name || coalesce(sql, '') FROM sqlite_schema ORDER BY name`)
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	old := objects()
	if err := migrate(t.Context(), db, files); err == nil {
		t.Fatal("the broken migration passed")
	}
	if !slices.Equal(objects(), old) {
		t.Error("the failed migration left something behind")
	}
	if version, err := fileVersion(t.Context(), db); err != nil || version != SchemaVersion() {
		t.Errorf("the schema is version %d, %v; want %d", version, err, SchemaVersion())
	}
	if r, err = Open(t.Context(), path, Options{}); err != nil {
		t.Fatal(err)
	}
	if r.State().RegisterID != before.RegisterID {
		t.Error("the register has another id")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// A register of the first version, with rows and dead letters, is brought to
// the newest without touching a row.
func TestARegisterOfTheFirstVersionIsMigrated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signalbox.db")
	first, err := fs.ReadFile(migrations, "migrations/00001_register.sql")
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrate(t.Context(), db, fstest.MapFS{"migrations/00001_register.sql": {Data: first}}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `INSERT INTO messages VALUES (1, 1, 1, 1, 'cmd', 's', 'the-message', 'event', 'me', NULL,
		'claimed', NULL, 5, NULL, 'c', 't', '{}', NULL, 'not JSON', NULL, zeroblob(32));
		INSERT INTO dead_letters VALUES ('counter', 1, 'refused:BODY_INVALID', 1, 'not JSON', 1)`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var version int64
	var messageID, body string
	if err := r.QueryRow(`SELECT (SELECT max(version_id) FROM goose_db_version), d.message_id, m.body
		FROM dead_letters d JOIN messages m USING (id)`).Scan(&version, &messageID, &body); err != nil {
		t.Fatal(err)
	}
	if version != SchemaVersion() || messageID != "the-message" || body != "not JSON" {
		t.Errorf("version %d of %d, dead letter of %q, body %q", version, SchemaVersion(), messageID, body)
	}
}
