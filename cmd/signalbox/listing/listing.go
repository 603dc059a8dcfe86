// Package listing prints lists of records as a table that fits the terminal,
// as JSON, as JSON lines or as CSV, one page after the other, so that a list
// may be longer than memory or never end.
//
// Nothing that a record holds can steer the terminal: control characters are
// written as escapes in tables and in JSON, and in CSV where it goes to a
// terminal. CSV in a file or a pipe has them as they are.
package listing

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// Format is how a list is printed.
type Format string

// The formats of lists.
const (
	Table Format = "table" // for people
	JSON  Format = "json"  // one array
	JSONL Format = "jsonl" // a JSON value a line
	CSV   Format = "csv"   // RFC 4180, a header first
)

// Widths of the table where there is no terminal, or a very narrow one.
const (
	plainWidth = 120
	leastWidth = 40
)

// Column of a table.
type Column struct {
	Title string
	Min   int  // narrower it says nothing
	Usual int  // width in a list that goes on, whose later cells are not known
	Right bool // numbers
	Whole bool // never cut
}

// Record is one entry of a list. Only the field of the list's format is used.
type Record struct {
	Cells []string // of the table, any text
	Line  string   // in place of Cells: a line across all columns
	JSON  any
	CSV   []string
}

// List prints records in one format.
type List struct {
	out      io.Writer
	format   Format
	columns  []Column
	header   []string
	endless  bool
	width    int
	terminal bool
	widths   []int // of the columns, once the first page is known
	began    bool  // the header or the bracket is out
	some     bool  // a record is out
}

// New makes a list that prints to out. header are the names of the CSV fields.
// In an endless list, columns are as wide as usual from the beginning.
func New(out io.Writer, f Format, columns []Column, header []string, endless bool) *List {
	l := &List{out: out, format: f, columns: columns, header: header, endless: endless}
	l.width, l.terminal = Width(out)
	return l
}

// Width is how many columns out has and whether it is a terminal.
func Width(out io.Writer) (columns int, terminal bool) {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return plainWidth, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 {
		return 80, true
	}
	return max(columns, leastWidth), true
}

// Write prints the next records. The first call also prints the header, and
// its records decide how wide the columns are.
func (l *List) Write(records ...Record) error {
	var b bytes.Buffer
	var err error
	switch l.format {
	case JSON, JSONL:
		err = l.writeJSON(&b, records)
	case CSV:
		err = l.writeCSV(&b, records)
	default:
		l.writeTable(&b, records)
	}
	l.began = true
	if err != nil {
		return err
	}
	_, err = l.out.Write(b.Bytes())
	return err
}

// Close ends the list; one without any record still has its header or brackets.
func (l *List) Close() error {
	if !l.began {
		if err := l.Write(); err != nil {
			return err
		}
	}
	if l.format != JSON {
		return nil
	}
	end := "\n]\n"
	if !l.some {
		end = "]\n"
	}
	_, err := io.WriteString(l.out, end)
	return err
}

func (l *List) writeJSON(b *bytes.Buffer, records []Record) error {
	if l.format == JSON && !l.began {
		b.WriteByte('[')
	}
	for _, r := range records {
		raw, err := json.Marshal(r.JSON)
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		if l.format == JSON {
			if l.some {
				b.WriteByte(',')
			}
			b.WriteByte('\n')
			l.some = true
		}
		b.WriteString(EscapeJSON(string(raw)))
		if l.format == JSONL {
			b.WriteByte('\n')
		}
	}
	return nil
}

func (l *List) writeCSV(b *bytes.Buffer, records []Record) error {
	w := csv.NewWriter(b)
	write := func(fields []string) error {
		if l.terminal {
			safe := make([]string, len(fields))
			for i, f := range fields {
				safe[i] = Escape(f)
			}
			fields = safe
		}
		return w.Write(fields)
	}
	if !l.began {
		if err := write(l.header); err != nil {
			return err
		}
	}
	for _, r := range records {
		if err := write(r.CSV); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// Object prints one value: indented for JSON, otherwise in one line.
func Object(out io.Writer, f Format, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	var b bytes.Buffer
	if f == JSON {
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
	} else {
		b.Write(raw)
	}
	_, err = fmt.Fprintln(out, EscapeJSON(b.String()))
	return err
}
