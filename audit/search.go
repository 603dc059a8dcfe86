package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxWords is how many words or phrases a search may have.
const maxWords = 64

// wordsTable is the full text of rows. It keeps no text of its own: hits are
// read from the register. The same tokenizer serves the index and the rows
// that it has not reached, so both find the same.
const wordsTable = `CREATE VIRTUAL TABLE words USING fts5(subject, body, content = '', columnsize = 0, tokenize = 'unicode61')`

const insertWords = `INSERT INTO words (rowid, subject, body) VALUES (?, ?, ?)`

// searchable is the text of a body: none where it is not UTF-8.
func searchable(body []byte) string {
	if !utf8.Valid(body) {
		return ""
	}
	return string(body)
}

// matchText turns what a person typed into an FTS5 expression in which nothing
// of it is an operator: words and "phrases", each perhaps with a * after it.
func matchText(text string) (string, error) {
	// FTS5 reads an expression up to its first NUL.
	text = strings.ReplaceAll(strings.ToValidUTF8(text, " "), "\x00", " ")
	var terms []string
	add := func(term string, prefix bool) {
		if strings.TrimSpace(term) == "" {
			return
		}
		term = `"` + strings.ReplaceAll(term, `"`, `""`) + `"`
		if prefix {
			term += "*"
		}
		terms = append(terms, term)
	}
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimLeftFunc(text, unicode.IsSpace) {
		if text[0] == '"' {
			phrase, rest, closed := strings.Cut(text[1:], `"`)
			stars := len(rest) - len(strings.TrimLeft(rest, "*"))
			add(phrase, closed && stars > 0)
			text = rest[stars:]
			continue
		}
		end := strings.IndexFunc(text, func(r rune) bool { return r == '"' || unicode.IsSpace(r) })
		if end < 0 {
			end = len(text)
		}
		word := strings.TrimRight(text[:end], "*")
		add(word, len(word) < end)
		text = text[end:]
	}
	switch {
	case len(terms) > maxWords:
		return "", fmt.Errorf("%w: a search has at most %d words", ErrFilter, maxWords)
	case len(terms) == 0:
		return `""`, nil // matches nothing
	}
	// A space between terms is an AND that leaves out terms without a word.
	return strings.Join(terms, " "), nil
}

// matcher searches rows that are at hand, with an index in memory that is
// emptied after each use.
type matcher struct {
	db     *sql.DB
	insert *sql.Stmt
	query  *sql.Stmt
	text   string
}

func newMatcher(ctx context.Context, text string) (*matcher, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	db.SetMaxOpenConns(1) // each connection would have a memory of its own
	m := &matcher{db: db, text: text}
	if _, err = db.ExecContext(ctx, wordsTable); err == nil {
		if m.insert, err = db.PrepareContext(ctx, insertWords); err == nil {
			m.query, err = db.PrepareContext(ctx, `SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid`)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("search: %w", err), db.Close())
	}
	return m, nil
}

func (m *matcher) close() { _ = m.db.Close() } // it was only memory

// match gives those of the rows that have the text, in the same order.
func (m *matcher) match(ctx context.Context, rows []*Row) ([]*Row, error) {
	if err := m.fill(ctx, rows); err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	found, err := m.query.QueryContext(ctx, m.text)
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	defer found.Close()
	var hits []*Row
	for found.Next() {
		var place int
		if err := found.Scan(&place); err != nil {
			return nil, fmt.Errorf("search: %w", err)
		}
		hits = append(hits, rows[place])
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	return hits, nil
}

func (m *matcher) fill(ctx context.Context, rows []*Row) error {
	tx, err := m.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, `INSERT INTO words (words) VALUES ('delete-all')`); err != nil {
		return err
	}
	insert := tx.StmtContext(ctx, m.insert)
	defer insert.Close()
	for i, row := range rows {
		if _, err := insert.ExecContext(ctx, i, row.Subject, searchable(row.Body)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// searchStep puts the next rows into the full text.
func (ix *Index) searchStep(ctx context.Context) error {
	if ix.conn == nil {
		return errNoFile
	}
	mark := ix.search.Load()
	rows, err := ix.register.QueryContext(ctx, `SELECT id, subject, coalesce(body, body_raw) FROM messages
		WHERE id > ? AND id <= ? ORDER BY id`, mark, min(mark+wordRows, ix.refs.Load()))
	if err != nil {
		return &sourceError{err}
	}
	defer rows.Close()
	err = ix.transact(ctx, func() error {
		insert, err := ix.conn.PrepareContext(ctx, insertWords)
		if err != nil {
			return err
		}
		defer insert.Close()
		for weight := 0; weight < wordBytes && rows.Next(); {
			var id int64
			var subject string
			var body []byte
			if err := rows.Scan(&id, &subject, &body); err != nil {
				return err
			}
			if _, err := insert.ExecContext(ctx, id, subject, searchable(body)); err != nil {
				return err
			}
			weight, mark = weight+len(body), id
		}
		if err := rows.Err(); err != nil {
			return &sourceError{err}
		}
		_, err = ix.conn.ExecContext(ctx, `UPDATE marks SET search_mark = ?`, mark)
		return err
	})
	if err == nil {
		ix.search.Store(mark)
	}
	return err
}
