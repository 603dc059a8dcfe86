package listing

import (
	"bytes"
	"strings"

	"github.com/mattn/go-runewidth"
)

// space stands between two columns.
const space = "  "

func (l *List) writeTable(b *bytes.Buffer, records []Record) {
	for i := range records {
		for j, cell := range records[i].Cells {
			records[i].Cells[j] = Escape(cell)
		}
	}
	if !l.began {
		l.layOut(records)
		titles := make([]string, len(l.columns))
		for i, c := range l.columns {
			titles[i] = c.Title
		}
		l.writeCells(b, titles)
	}
	for _, r := range records {
		if r.Line != "" {
			b.WriteString(Cut(Escape(r.Line), l.width) + "\n")
			continue
		}
		l.writeCells(b, r.Cells)
	}
}

// layOut gives each column what its widest cell needs, and takes from the
// widest ones what the line has not.
func (l *List) layOut(records []Record) {
	l.widths = make([]int, len(l.columns))
	total := len(space) * (len(l.columns) - 1)
	for i, c := range l.columns {
		l.widths[i] = runewidth.StringWidth(c.Title)
		if l.endless {
			l.widths[i] = max(l.widths[i], c.Usual)
		}
		for _, r := range records {
			if i < len(r.Cells) {
				l.widths[i] = max(l.widths[i], runewidth.StringWidth(r.Cells[i]))
			}
		}
		total += l.widths[i]
	}
	for ; total > l.width; total-- {
		widest := -1
		for i, c := range l.columns {
			if !c.Whole && l.widths[i] > max(c.Min, 1) && (widest < 0 || l.widths[i] > l.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return // every column is as narrow as it may be
		}
		l.widths[widest]--
	}
	if l.endless {
		l.widths[len(l.widths)-1] += l.width - total
	}
}

func (l *List) writeCells(b *bytes.Buffer, cells []string) {
	var line strings.Builder
	for i, cell := range cells {
		if i > 0 {
			line.WriteString(space)
		}
		c, width := l.columns[i], l.widths[i]
		if !c.Whole {
			cell = Cut(cell, width)
		}
		if c.Right {
			line.WriteString(runewidth.FillLeft(cell, width))
		} else {
			line.WriteString(runewidth.FillRight(cell, width))
		}
	}
	b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}
