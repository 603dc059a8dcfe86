package audit

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// versionTable is where goose keeps which migrations a file has.
const versionTable = "goose_db_version"

// SchemaVersion is the newest version of the schema that this program knows.
func SchemaVersion() int64 {
	p, err := provider(nil, migrations)
	if err != nil {
		return 0
	}
	sources := p.ListSources()
	return sources[len(sources)-1].Version
}

// provider makes goose's view of db; nil gives one that can only list.
func provider(db *sql.DB, files fs.FS) (*goose.Provider, error) {
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	if db == nil {
		if db, err = sql.Open("sqlite", ":memory:"); err != nil {
			return nil, err
		}
		defer db.Close()
	}
	return goose.NewProvider(goose.DialectSQLite3, db, dir, goose.WithDisableGlobalRegistry(true))
}

// checkFile refuses what is not a register of this version or an older one,
// before anything could write to it.
func checkFile(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("register %s: %w", path, err)
	case info.IsDir():
		return fmt.Errorf("register %s: is a directory", path)
	case info.Size() == 0:
		return nil
	}
	db, err := sql.Open("sqlite", dsn(path, url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(5000)", "query_only(true)"}}))
	if err != nil {
		return fmt.Errorf("register %s: %w", path, err)
	}
	defer db.Close()
	_, err = fileVersion(ctx, db)
	if err != nil {
		return fmt.Errorf("register %s: %w", path, err)
	}
	return nil
}

// fileVersion is the version of the schema of an open file.
func fileVersion(ctx context.Context, db *sql.DB) (int64, error) {
	var tables int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name IN (?, 'messages', 'bridge_state')`,
		versionTable).Scan(&tables); err != nil {
		return 0, err
	}
	if tables == 0 {
		var others int
		if err := db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema`).Scan(&others); err != nil {
			return 0, err
		}
		if others == 0 {
			return 0, nil
		}
	}
	if tables != 3 {
		return 0, ErrNotRegister
	}
	var version int64
	if err := db.QueryRowContext(ctx, `SELECT coalesce(max(version_id), 0) FROM `+versionTable).Scan(&version); err != nil {
		return 0, err
	}
	if known := SchemaVersion(); version > known {
		return version, fmt.Errorf("%w: its schema is version %d and this program knows up to %d; use the newer program, nothing was changed",
			ErrNewer, version, known)
	}
	return version, nil
}

// migrate brings an empty or older file to the newest schema; each migration
// is one transaction, so a failed one leaves the schema before it whole.
func migrate(ctx context.Context, db *sql.DB, files fs.FS) error {
	p, err := provider(db, files)
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	_, err = db.ExecContext(ctx, `INSERT INTO bridge_state (id, register_id) VALUES (1, ?) ON CONFLICT DO NOTHING`, uuid.NewString())
	return err
}
