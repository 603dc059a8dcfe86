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
	first, err := fs.ReadFile(migrations, "migrations/00001_register.sql")
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{
		"migrations/00001_register.sql": {Data: first},
		"migrations/00002_broken.sql":   {Data: []byte("-- +goose Up\nCREATE TABLE half (id INTEGER) STRICT;\nALTER TABLE messages ADD COLUMN more TEXT;\nINSERT INTO nowhere VALUES (1);\n")},
	}
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
	if version, err := fileVersion(t.Context(), db); err != nil || version != 1 {
		t.Errorf("the schema is version %d, %v; want 1", version, err)
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
