package main

import (
	"slices"
	"testing"
	"time"

	"signalbox/audit"
	"signalbox/cmd/signalbox/listing"
	"signalbox/wire"
)

// lines are the rows and gaps of records, "7" or the text of the gap.
func lines(records []listing.Record) []string {
	var list []string
	for _, r := range records {
		if r.Line != "" {
			list = append(list, r.Line)
		} else {
			list = append(list, r.Cells[0])
		}
	}
	return list
}

func row(id int64) *audit.Row { return &audit.Row{ID: id, AtNS: id * 1e9, Kind: wire.Msg} }

func gap(cause int64) audit.Gap {
	return audit.Gap{Stream: "BUS", From: 1, To: uint64(cause), Reason: audit.Overtaken, Cause: cause}
}

func TestAGapStandsJustBeforeTheRowThatIsItsCause(t *testing.T) {
	page := audit.Page{Rows: []*audit.Row{row(3), row(5), row(9)}, Gaps: []audit.Gap{gap(3), gap(7), gap(11)}}
	want := []string{"gap 1..3 of BUS (overtaken)", "3", "5", "gap 1..7 of BUS (overtaken)", "9", "gap 1..11 of BUS (overtaken)"}
	if got := lines(merged(page, logRecord)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, r := range merged(page, logRecord) {
		if len(r.CSV) != len(rowHeader) {
			t.Errorf("a CSV record of %d fields: %q", len(r.CSV), r.CSV)
		}
	}
}

func TestGapsCountInAChainBetweenItsFirstRowAndItsLast(t *testing.T) {
	pages := []audit.Page{
		{Gaps: []audit.Gap{gap(2)}},
		{Rows: []*audit.Row{row(3), row(5)}, Gaps: []audit.Gap{gap(3), gap(5), gap(6)}},
		{Gaps: []audit.Gap{gap(8)}},
		{Rows: []*audit.Row{row(9)}, Gaps: []audit.Gap{gap(12)}},
		{Gaps: []audit.Gap{gap(14)}},
	}
	var c chain
	var got []string
	for _, page := range pages {
		got = append(got, lines(c.records(page))...)
	}
	want := []string{"3", "gap 1..5 of BUS (overtaken)", "5", "gap 1..6 of BUS (overtaken)", "gap 1..8 of BUS (overtaken)", "9"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAnInstantIsADateATimeOrSoLongAgo(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"15m":                            now.Add(-15 * time.Minute),
		"0s":                             now,
		"2026-11-29":                     time.Date(2026, 11, 29, 0, 0, 0, 0, time.Local),
		"2026-11-29 08:30":               time.Date(2026, 11, 29, 8, 30, 0, 0, time.Local),
		"2026-11-29T08:30:01":            time.Date(2026, 11, 29, 8, 30, 1, 0, time.Local),
		"2026-11-29T08:30:00.5+01:00":    time.Date(2026, 11, 29, 7, 30, 0, 5e8, time.UTC),
		"2026-11-29T08:30:00.000000001Z": time.Date(2026, 11, 29, 8, 30, 0, 1, time.UTC),
	} {
		var got time.Time
		if err := (instant{&got, func() time.Time { return now }}).Set(text); err != nil || !got.Equal(want) {
			t.Errorf("%s is %v (%v), not %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1h", "now", "2026-13-01", "15", "1d"} {
		var got time.Time
		if err := (instant{&got, func() time.Time { return now }}).Set(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

func TestABodyIsCutBetweenCharacters(t *testing.T) {
	body := make([]byte, 0, 2*shortBody)
	body = append(body, 'x')
	for len(body) < 2*shortBody {
		body = append(body, "é"...)
	}
	if got := bodyText(body); len(got) != shortBody-1 {
		t.Errorf("%d bytes, not the %d that are whole", len(got), shortBody-1)
	}
}
