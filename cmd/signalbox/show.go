package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/cmd/signalbox/listing"
	"signalbox/inbox"
)

// dumped is how much of a binary body is shown.
const dumped = 1 << 10

// showTime is a local time with all that is known of it.
const showTime = "2006-01-02 15:04:05.000000000 -07:00"

func (a *app) showCommand() *cobra.Command {
	var format listing.Format
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show one message, and what became of it", Args: oneArg("the id of a row or of a message"),
		Long: `Show a row of the register with its leaf hash, headers and body, and what became of
it. ID is the id of the row, or the id of the message.`,
		RunE: func(_ *cobra.Command, args []string) error { return a.show(args[0], format) },
	}
	output(cmd, &format, listing.Table, listing.JSON, listing.JSONL)
	return cmd
}

func (a *app) show(id string, format listing.Format) error {
	ctx := context.Background()
	r, err := a.register(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	defer a.spin("looking for the message")()
	row, err := a.find(ctx, r, id)
	if err != nil {
		return err
	}
	fate, err := bridge.ReadFate(ctx, r, row)
	if err != nil {
		return err
	}
	if format == listing.Table {
		_, err = io.WriteString(a.stdout, shown(row, fate))
		return err
	}
	raw, err := row.WithLeaf()
	if err != nil {
		return err
	}
	return listing.Object(a.stdout, format, struct {
		Row json.RawMessage `json:"row"`
		bridge.Fate
	}{raw, fate})
}

// find is the row with an id, or the first one of a message with that id.
func (a *app) find(ctx context.Context, r *audit.Reader, id string) (*audit.Row, error) {
	none := fmt.Errorf("message %q: %w", id, audit.ErrNotFound)
	if n, err := strconv.ParseInt(id, 10, 64); err == nil {
		row, err := r.Row(ctx, n)
		if !errors.Is(err, audit.ErrNotFound) {
			return row, err
		}
		none = err // a message id may be a number as well
	}
	rows, err := r.ByMessageID(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case len(rows) == 0:
		return nil, none
	case len(rows) > 1:
		ids := make([]string, len(rows)-1)
		for i, row := range rows[1:] {
			ids[i] = strconv.FormatInt(row.ID, 10)
		}
		fmt.Fprintf(a.stderr, "signalbox: the message id was used again in rows %s\n", strings.Join(ids, ", "))
	}
	return rows[0], nil
}

// shown is a row and its fate for people.
func shown(row *audit.Row, fate bridge.Fate) string {
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-12s %s\n", name, listing.Escape(value))
		}
	}
	line("id", strconv.FormatInt(row.ID, 10))
	line("place", fmt.Sprintf("%d:%d", row.Incarnation, row.Seq))
	line("at", row.At().Local().Format(showTime))
	line("kind", string(row.Kind))
	line("subject", row.Subject)
	line("message_id", row.MessageID)
	line("type", string(row.Type))
	line("from", row.From)
	if row.From != "" {
		line("identity", row.Identity())
	}
	line("to", row.To)
	line("topic", row.Topic)
	line("priority", strconv.Itoa(row.Priority))
	if row.ExpiresAtMS != 0 {
		line("expires", time.UnixMilli(row.ExpiresAtMS).Format(logYear))
	}
	line("correlation", row.CorrelationID)
	line("trace", row.TraceID)
	line("leaf", hex.EncodeToString(row.Leaf[:]))
	for _, name := range slices.Sorted(maps.Keys(row.Header)) {
		for _, value := range row.Header[name] {
			line("header", name+": "+value)
		}
	}
	line("status", fate.Status)
	if fate.Refusal != nil {
		line("refusal", fate.Refusal.Error())
		line("hint", fate.Refusal.Hint)
	}
	for _, d := range fate.Deliveries {
		line("delivery", deliveryText(d))
	}
	for _, t := range fate.Transitions {
		line("transition", fmt.Sprintf("%s %s: %s → %s (%s)", t.Machine, t.Key, t.From, t.To, t.Reason))
	}
	b.WriteString(shownBody(row.Body))
	return b.String()
}

// deliveryText is what became of a message for one recipient, in a line.
func deliveryText(d inbox.Delivery) string {
	text := fmt.Sprintf("%s: %s", d.Recipient, d.Status)
	at := func(what string, ms *int64, id *int64) {
		if ms != nil && id != nil {
			text += fmt.Sprintf(", %s %s by row %d", what, time.UnixMilli(*ms).Local().Format(logTime), *id)
		}
	}
	if d.Attempts > 0 {
		text += fmt.Sprintf(", fetched %d×", d.Attempts)
	}
	at("last", d.DeliveredAtMS, d.DeliveredID)
	at(d.Status, d.OutcomeAtMS, d.OutcomeID)
	if d.RedrivenID != nil {
		text += fmt.Sprintf(", redriven by row %d", *d.RedrivenID)
	}
	return text
}

// logYear is logTime with the year.
const logYear = "2006-01-02 15:04:05.000"

// shownBody is a body for people: JSON indented, text as it is, a dump of the
// beginning of anything else.
func shownBody(body []byte) string {
	text, kind := string(body), "text"
	var indented bytes.Buffer
	switch {
	case len(body) == 0:
		return fmt.Sprintf("%-12s (empty)\n", "body")
	case !utf8.Valid(body):
		kind, text = "binary", strings.TrimSuffix(hex.Dump(body[:min(len(body), dumped)]), "\n")
		if more := len(body) - dumped; more > 0 {
			text += fmt.Sprintf("\n… %d bytes more; -o json has all of them", more)
		}
	case json.Indent(&indented, body, "", "  ") == nil:
		kind, text = "JSON", indented.String()
	}
	return fmt.Sprintf("%-12s (%s, %d bytes)\n%s\n", "body", kind, len(body), listing.EscapeText(text))
}
