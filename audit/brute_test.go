package audit_test

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"signalbox/audit"
	"signalbox/wire"
)

// The vocabulary of random rows: small, so that filters meet rows.
var (
	someAgents = []string{"alice", "bob", "carol", "dave-2"}
	someIDs    = []string{"t1", "t2", "0190b6f0-0000-7000-8000-000000000001", "0190b6f0-0000-7000-8000-000000000002",
		"6ba7b810-9dad-41d1-80b4-00c04fd430c8"}
	someTopics = []string{"build", "build.linux", "news"}
	someTypes  = []wire.Type{wire.TypeEvent, wire.TypeRequest, wire.TypeHandoff}
	someKinds  = []wire.Kind{wire.Msg, wire.Cmd, wire.Evt, wire.Tap}
	someWords  = []string{"deploy", "failed", "retry", "Deployment", "green"}
)

var somePlaces = []string{"1:1", "1:2", "2:1", "1:77"}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// randomRows makes n rows. Their clock goes back now and then.
func randomRows(r *rand.Rand, n int, at *int64) []*audit.Row {
	rows := make([]*audit.Row, n)
	for i := range rows {
		*at += int64(r.IntN(100)) * 1e6
		if r.IntN(200) == 0 {
			*at -= 5e9
		}
		row := &audit.Row{
			AtNS: *at, Kind: pick(r, someKinds), MessageID: uuid.NewString(), Type: pick(r, someTypes), From: pick(r, someAgents),
			Priority: 1 + r.IntN(9), CorrelationID: uuid.NewString(), TraceID: uuid.NewString(),
		}
		if r.IntN(2) == 0 {
			row.ExpiresAtMS = *at/1e6 + int64(r.IntN(100_000))
		}
		for _, id := range []*string{&row.MessageID, &row.CorrelationID, &row.TraceID} {
			if r.IntN(20) == 0 {
				*id = pick(r, someIDs)
			}
		}
		row.Subject = "bus.msg." + row.From + "." + pick(r, []string{"agent.", "topic.", "role.p."}) + pick(r, someTopics)
		if r.IntN(3) == 0 {
			row.To = "agent:" + pick(r, someAgents)
		} else if r.IntN(3) == 0 {
			row.To = pick(r, []string{"topic:build", "role:p/lead", "role:p/lead/s"})
		}
		if r.IntN(2) == 0 {
			row.Topic = pick(r, someTopics)
		}
		if row.Kind == wire.Evt {
			row.From = "signalbox"
			row.Subject = "bus.evt." + pick(r, []string{"notice", "agents", "assign", "roles.agents"}) + "." + pick(r, someAgents) +
				pick(r, []string{".refused", ".online", ".a.b"})
		}
		if r.IntN(3) == 0 { // of others it means nothing
			row.Header = wire.Header{wire.HeaderCause: {pick(r, somePlaces)}}
		}
		if r.IntN(50) == 0 { // a row in which rare values are
			row.From, row.Topic = "rare", "seldom"
		}
		row.Body = []byte(pick(r, someWords) + " " + pick(r, someWords) + `, "` + pick(r, someWords) + `"`)
		if r.IntN(20) == 0 {
			row.Body = append(row.Body, 0xff)
		}
		rows[i] = row
	}
	return rows
}

func maybe[T any](t *rapid.T, label string, list []T, set func(T)) {
	if rapid.IntRange(0, 4).Draw(t, label+"?") == 0 {
		set(rapid.SampledFrom(list).Draw(t, label))
	}
}

func drawFilter(t *rapid.T, rows []*audit.Row) audit.Filter {
	var f audit.Filter
	agents := append([]string{"agent:alice", "rare", "nobody"}, someAgents...)
	maybe(t, "trace", someIDs, func(v string) { f.Trace = v })
	maybe(t, "correlation", someIDs, func(v string) { f.Correlation = v })
	maybe(t, "message", someIDs, func(v string) { f.MessageID = v })
	maybe(t, "chain", someIDs, func(v string) { f.Chain = v })
	maybe(t, "cause", somePlaces, func(v string) { f.Cause = v })
	maybe(t, "from", agents, func(v string) { f.From = v })
	maybe(t, "to", append([]string{"topic:build", "role:p/lead"}, agents...), func(v string) { f.To = v })
	maybe(t, "topic", append([]string{"seldom"}, someTopics...), func(v string) { f.Topic = v })
	maybe(t, "type", someTypes, func(v wire.Type) { f.Type = v })
	maybe(t, "for", agents, func(v string) { f.ForAgent = v })
	maybe(t, "subject", []string{"bus.>", "bus.msg.*.agent.*", "bus.evt.notice.*.refused", "*.msg.alice.>", "bus.msg.bob.topic.build", ">", "nothing"},
		func(v string) { f.Subject = v })
	maybe(t, "kinds", [][]wire.Kind{{wire.Msg}, {wire.Cmd, wire.Evt}, {wire.Tap, wire.Msg, wire.Evt}}, func(v []wire.Kind) { f.Kinds = v })
	maybe(t, "since", rows, func(v *audit.Row) { f.Since = v.At() })
	maybe(t, "until", rows, func(v *audit.Row) { f.Until = v.At() })
	maybe(t, "search", []string{"deploy", "DEPLOY failed", `"retry green"`, "deploy*", "alice", "absent"}, func(v string) { f.Search = v })
	f.Limit = rapid.SampledFrom([]int{0, 1, 7, 100, 1000}).Draw(t, "limit")
	if rapid.Bool().Draw(t, "forward") {
		after := rapid.Int64Range(0, int64(len(rows))+2).Draw(t, "after")
		f.After = &after
	}
	return f
}

// selects is the filter's meaning, written down a second time.
func selects(f audit.Filter, r *audit.Row) bool {
	is := func(want, got string) bool { return want == "" || want == got }
	agent := func(s string) string { return strings.TrimPrefix(s, "agent:") }
	to := f.To
	if to != "" && !strings.Contains(to, ":") {
		to = "agent:" + to
	}
	if !is(f.Trace, r.TraceID) || !is(f.Correlation, r.CorrelationID) || !is(f.MessageID, r.MessageID) ||
		!is(agent(f.From), r.From) || !is(to, r.To) || !is(f.Topic, r.Topic) || !is(string(f.Type), string(r.Type)) {
		return false
	}
	if f.Chain != "" && !slices.Contains([]string{r.TraceID, r.CorrelationID, r.MessageID}, f.Chain) {
		return false
	}
	if f.Cause != "" && (r.From != "signalbox" || r.Header.First("Bus-Cause") != f.Cause) {
		return false
	}
	if len(f.Kinds) > 0 && !slices.Contains(f.Kinds, r.Kind) {
		return false
	}
	tokens := strings.Split(r.Subject, ".")
	if f.Subject != "" && !natsMatch(strings.Split(f.Subject, "."), tokens) {
		return false
	}
	if a := agent(f.ForAgent); a != "" && r.From != a && r.To != "agent:"+a {
		if r.Kind != wire.Evt || len(tokens) != 5 || tokens[3] != a || tokens[2] != "notice" && tokens[2] != "agents" {
			return false
		}
	}
	if !f.Since.IsZero() && r.At().Before(f.Since) || !f.Until.IsZero() && !r.At().Before(f.Until) {
		return false
	}
	return f.Search == "" || searchMatch(f.Search, r)
}

func natsMatch(pattern, subject []string) bool {
	for i, p := range pattern {
		switch {
		case i >= len(subject):
			return false
		case p == ">":
			return true
		case p != "*" && p != subject[i]:
			return false
		}
	}
	return len(pattern) == len(subject)
}

// searchMatch knows only the searches that drawFilter makes.
func searchMatch(search string, r *audit.Row) bool {
	split := func(s string) []string {
		return strings.FieldsFunc(strings.ToLower(s), func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
	}
	texts := [][]string{split(r.Subject)}
	if !slices.Contains(r.Body, 0xff) {
		texts = append(texts, split(string(r.Body)))
	}
	has := func(ok func(words []string) bool) bool { return slices.ContainsFunc(texts, ok) }
	switch search {
	case `"retry green"`:
		return has(func(w []string) bool { return strings.Contains(" "+strings.Join(w, " ")+" ", " retry green ") })
	case "deploy*":
		return has(func(w []string) bool {
			return slices.ContainsFunc(w, func(s string) bool { return strings.HasPrefix(s, "deploy") })
		})
	}
	for _, word := range split(search) {
		if !has(func(w []string) bool { return slices.Contains(w, word) }) {
			return false
		}
	}
	return true
}

func wantPage(f audit.Filter, rows []*audit.Row) []int64 {
	limit := f.Limit
	if limit == 0 {
		limit = audit.DefaultLimit
	}
	ids := []int64{}
	for _, r := range rows {
		if (f.After == nil || r.ID > *f.After) && selects(f, r) {
			ids = append(ids, r.ID)
		}
	}
	switch {
	case len(ids) <= limit:
		return ids
	case f.After == nil:
		return ids[len(ids)-limit:]
	}
	return ids[:limit]
}
