package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"signalbox/audit"
	"signalbox/cmd/signalbox/listing"
)

// shortBody is how much of a body a table looks at.
const shortBody = 400

// logTime is how tables write a time, local; show has the year.
const logTime = "01-02 15:04:05.000"

var logColumns = []listing.Column{
	{Title: "ID", Right: true, Whole: true, Usual: 6}, {Title: "TIME", Whole: true, Usual: len(logTime)},
	{Title: "KIND", Whole: true}, {Title: "FROM", Min: 5, Usual: 12}, {Title: "TO", Min: 7, Usual: 14},
	{Title: "TYPE", Min: 5, Usual: 8}, {Title: "SUBJECT", Min: 8, Usual: 24}, {Title: "BODY", Min: 8, Usual: 12},
}

var rowHeader = []string{"id", "incarnation", "seq", "at", "kind", "subject", "message_id", "type", "from", "to", "identity", "topic",
	"priority", "expires_at_ms", "correlation_id", "trace_id", "headers", "body", "body_base64"}

// logRecord is a row as a list prints it.
func logRecord(r *audit.Row) listing.Record {
	return listing.Record{
		Cells: []string{strconv.FormatInt(r.ID, 10), r.At().Local().Format(logTime), string(r.Kind), r.From, r.To, string(r.Type), r.Subject, bodyText(r.Body)},
		JSON:  r, CSV: rowFields(r),
	}
}

// bodyText is the beginning of a body for a cell of a table.
func bodyText(body []byte) string {
	if !utf8.Valid(body) {
		return fmt.Sprintf("(%d bytes)", len(body))
	}
	s := string(body[:min(len(body), shortBody)])
	return strings.ToValidUTF8(s, "") // the cut may have gone through a character
}

func rowFields(r *audit.Row) []string {
	headers, _ := json.Marshal(r.Header) // texts always marshal
	if r.Header == nil {
		headers = []byte("{}")
	}
	expires, body, raw := "", string(r.Body), ""
	if r.ExpiresAtMS != 0 {
		expires = strconv.FormatInt(r.ExpiresAtMS, 10)
	}
	if !utf8.Valid(r.Body) {
		body, raw = "", base64.StdEncoding.EncodeToString(r.Body)
	}
	return []string{strconv.FormatInt(r.ID, 10), strconv.FormatInt(r.Incarnation, 10), strconv.FormatUint(r.Seq, 10), utc(r.At()),
		string(r.Kind), r.Subject, r.MessageID, string(r.Type), r.From, r.To, r.Identity(), r.Topic,
		strconv.Itoa(r.Priority), expires, r.CorrelationID, r.TraceID, string(headers), body, raw}
}

// utc is a time as everything but tables writes it.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z") }

// gapText says what a gap is, in one line.
func gapText(g audit.Gap) string {
	to := "?"
	if g.To != 0 {
		to = strconv.FormatUint(g.To, 10)
	}
	return fmt.Sprintf("gap %d..%s of %s (%s)", g.From, to, g.Stream, g.Reason)
}

// gapRecord is a gap in its place among rows. As CSV it has no id, the kind
// "gap", the first lost number as seq, the stream as subject, and the text.
func gapRecord(g audit.Gap) listing.Record {
	fields := make([]string, len(rowHeader))
	fields[1], fields[2], fields[3] = strconv.FormatInt(g.Incarnation, 10), strconv.FormatUint(g.From, 10), utc(time.UnixMilli(g.AtMS))
	fields[4], fields[5], fields[17] = "gap", g.Stream, gapText(g)
	return listing.Record{Line: gapText(g), JSON: map[string]audit.Gap{"gap": g}, CSV: fields}
}

// merged are the rows of a page with each gap just before its cause. A gap
// whose cause the filter left out stands where the cause would.
func merged(page audit.Page, record func(*audit.Row) listing.Record) []listing.Record {
	list := make([]listing.Record, 0, len(page.Rows)+len(page.Gaps))
	gaps := page.Gaps
	for _, row := range page.Rows {
		for len(gaps) > 0 && gaps[0].Cause <= row.ID {
			list = append(list, gapRecord(gaps[0]))
			gaps = gaps[1:]
		}
		list = append(list, record(row))
	}
	for _, g := range gaps {
		list = append(list, gapRecord(g))
	}
	return list
}
