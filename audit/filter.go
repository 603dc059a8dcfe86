package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"signalbox/wire"
)

// ErrFilter means that a filter cannot be used; the text says why.
var ErrFilter = errors.New("the filter cannot be used")

// Limits of one page.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
	// pageBytes ends a page early: a thousand rows may have a thousand
	// megabytes of bodies.
	pageBytes = 32 << 20
)

// Filter selects rows. All that is set must hold; the zero value selects all.
type Filter struct {
	Trace       string      `json:"trace,omitempty"`
	Correlation string      `json:"correlation,omitempty"`
	MessageID   string      `json:"message_id,omitempty"`
	Chain       string      `json:"chain,omitempty"` // trace id, correlation id or message id
	Cause       string      `json:"cause,omitempty"` // place <incarnation>:<seq>: what the bridge published because of it
	From        string      `json:"from,omitempty"`  // "x" or "agent:x"
	To          string      `json:"to,omitempty"`    // "x", "agent:x", "topic:…" or "role:…"
	Topic       string      `json:"topic,omitempty"`
	Subject     string      `json:"subject,omitempty"` // NATS pattern: * is one token, a last > is one or more
	Type        wire.Type   `json:"type,omitempty"`
	Kinds       []wire.Kind `json:"kind,omitempty"`
	ForAgent    string      `json:"for_agent,omitempty"` // sent by it, addressed to it, or an event about it or for its notice
	Since       time.Time   `json:"since,omitzero"`      // the log's time, inclusive
	Until       time.Time   `json:"until,omitzero"`      // the log's time, exclusive
	// Search are words that the subject or a UTF-8 body must contain, in any
	// order and letter case; "words in quotes" must stand together, and a
	// trailing * matches the beginning of a word. Everything else is data.
	// A text without any word selects nothing.
	Search string `json:"search,omitempty"`

	// After, where set, asks for the first rows with a greater id; otherwise
	// the page has the newest rows.
	After *int64 `json:"after,omitempty"`
	// Limit is the most rows of a page: 1 to 1000, default 100.
	Limit int `json:"limit,omitempty"`
	// Within, where above 0, is the most rows that the page may look at, for
	// callers who must answer soon; Page.More then says how to go on.
	Within int64 `json:"-"`
}

func clampLimit(n int) int {
	if n <= 0 {
		return DefaultLimit
	}
	return min(n, MaxLimit)
}

// selection is a checked filter in the forms that its readers need.
type selection struct {
	where string // holds for every row selected, perhaps for more
	args  []any
	match func(*Row) bool // exact, but for the search
	text  string          // the search as FTS5 writes it, "" for none
	ids   [][]int64       // one of each of these keys stands in refs for a row selected
	terms [][]int64       // the same in blocks
	since int64           // ns
	until int64           // ns, exclusive
}

type condition struct {
	where string
	args  []any
	match func(*Row) bool
}

func (f Filter) selection(root wire.Root) (*selection, error) {
	s := &selection{since: minTime, until: maxTime}
	conditions, err := f.conditions(root)
	if err != nil {
		return nil, err
	}
	s.where = "1"
	for _, c := range conditions {
		if c.where != "" {
			s.where += " AND " + c.where
			s.args = append(s.args, c.args...)
		}
	}
	s.match = func(r *Row) bool {
		for _, c := range conditions {
			if !c.match(r) {
				return false
			}
		}
		return true
	}
	if f.Search != "" {
		if s.text, err = matchText(f.Search); err != nil {
			return nil, err
		}
	}
	if !f.Since.IsZero() {
		s.since = unixNano(f.Since)
	}
	if !f.Until.IsZero() {
		s.until = unixNano(f.Until)
	}
	f.keys(s)
	return s, nil
}

// keys fills in under which keys the index has the rows.
func (f Filter) keys(s *selection) {
	for _, v := range []struct {
		value string
		kinds []refKind
	}{
		{f.Trace, []refKind{refTrace}}, {f.Correlation, []refKind{refCorrelation}}, {f.MessageID, []refKind{refMessage}},
		{f.Chain, []refKind{refTrace, refCorrelation, refMessage}}, {f.Cause, []refKind{refCause}},
	} {
		if v.value == "" {
			continue
		}
		var keys []int64
		shared := false
		for _, kind := range v.kinds {
			var key int64
			key, shared = idKey(kind, v.value)
			keys = append(keys, key)
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		if shared {
			s.terms = append(s.terms, keys)
		} else {
			s.ids = append(s.ids, keys)
		}
	}
	if f.From != "" {
		s.terms = append(s.terms, []int64{termKey(refFrom, senderID(f.From))})
	}
	if f.To != "" {
		s.terms = append(s.terms, []int64{termKey(refTo, recipient(f.To))})
	}
	if f.Topic != "" {
		s.terms = append(s.terms, []int64{termKey(refTopic, f.Topic)})
	}
	if a := senderID(f.ForAgent); a != "" {
		s.terms = append(s.terms, []int64{termKey(refFrom, a), termKey(refTo, "agent:"+a), termKey(refAbout, a)})
	}
}

// conditions are the parts of the filter but for the search.
func (f Filter) conditions(root wire.Root) ([]condition, error) {
	var list []condition
	equal := func(column, want string, value func(*Row) string) {
		if want != "" {
			list = append(list, condition{column + " = ?", []any{want}, func(r *Row) bool { return value(r) == want }})
		}
	}
	equal("trace_id", f.Trace, func(r *Row) string { return r.TraceID })
	equal("correlation_id", f.Correlation, func(r *Row) string { return r.CorrelationID })
	equal("message_id", f.MessageID, func(r *Row) string { return r.MessageID })
	equal(`"from"`, senderID(f.From), func(r *Row) string { return r.From })
	equal(`"to"`, recipient(f.To), func(r *Row) string { return r.To })
	equal("topic", f.Topic, func(r *Row) string { return r.Topic })
	equal("type", string(f.Type), func(r *Row) string { return string(r.Type) })
	if id := f.Chain; id != "" {
		list = append(list, condition{"(trace_id = ? OR correlation_id = ? OR message_id = ?)", []any{id, id, id},
			func(r *Row) bool { return r.TraceID == id || r.CorrelationID == id || r.MessageID == id }})
	}
	if f.Cause != "" {
		list = append(list, condition{`"from" = ? AND json_extract(headers, ?) = ?`, []any{wire.Bridge, `$."` + wire.HeaderCause + `"[0]`, f.Cause},
			func(r *Row) bool { return r.From == wire.Bridge && r.Header.First(wire.HeaderCause) == f.Cause }})
	}
	if len(f.Kinds) > 0 {
		c := condition{match: func(r *Row) bool { return slices.Contains(f.Kinds, r.Kind) }}
		for _, k := range f.Kinds {
			c.args = append(c.args, string(k))
		}
		c.where = "kind IN (?" + strings.Repeat(", ?", len(f.Kinds)-1) + ")"
		list = append(list, c)
	}
	if f.Subject != "" {
		c, err := subjectCondition(f.Subject)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	if a := senderID(f.ForAgent); a != "" {
		list = append(list, agentCondition(root, a))
	}
	if !f.Since.IsZero() {
		ns := unixNano(f.Since)
		list = append(list, condition{"at >= ?", []any{ns}, func(r *Row) bool { return r.AtNS >= ns }})
	}
	if !f.Until.IsZero() {
		ns := unixNano(f.Until)
		list = append(list, condition{"at < ?", []any{ns}, func(r *Row) bool { return r.AtNS < ns }})
	}
	return list, nil
}

// senderID is the bare id of "x" or "agent:x".
func senderID(s string) string { return strings.TrimPrefix(s, string(wire.ToAgent)+":") }

// recipient is "agent:x" for a bare "x".
func recipient(s string) string {
	if s == "" || strings.Contains(s, ":") {
		return s
	}
	return wire.Recipient{Class: wire.ToAgent, Name: s}.String()
}

// Bounds of what fits in nanoseconds since 1970.
const (
	minTime = -1 << 63
	maxTime = 1<<63 - 1
)

// unixNano is t in nanoseconds since 1970, at the bounds where it does not fit.
func unixNano(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, minTime)):
		return minTime
	case t.After(time.Unix(0, maxTime)):
		return maxTime
	}
	return t.UnixNano()
}

// agentCondition selects what an agent sent, what is addressed to it, and the
// events about it or for its notice.
func agentCondition(root wire.Root, agent string) condition {
	to := wire.Recipient{Class: wire.ToAgent, Name: agent}.String()
	notice := string(root) + ".evt.notice." + agent + ".*"
	about := string(root) + ".evt.agents." + agent + ".*"
	return condition{
		`("from" = ? OR "to" = ? OR kind = 'evt')`, []any{agent, to},
		func(r *Row) bool {
			return r.From == agent || r.To == to ||
				r.Kind == wire.Evt && (subjectMatches(notice, r.Subject) || subjectMatches(about, r.Subject))
		},
	}
}

func subjectCondition(pattern string) (condition, error) {
	tokens := strings.Split(pattern, ".")
	for i, token := range tokens {
		switch {
		case token == "":
			return condition{}, fmt.Errorf("%w: subject %q has an empty token", ErrFilter, pattern)
		case token == ">" && i < len(tokens)-1:
			return condition{}, fmt.Errorf("%w: subject %q has a > before its end", ErrFilter, pattern)
		}
	}
	if !slices.Contains(tokens, "*") && tokens[len(tokens)-1] != ">" {
		return condition{"subject = ?", []any{pattern}, func(r *Row) bool { return r.Subject == pattern }}, nil
	}
	// GLOB takes * for any number of tokens, so it finds more and spares the
	// rest of the rows; it ends at a NUL and so does not judge such a subject.
	return condition{
		"(subject GLOB ? OR instr(subject, char(0)) > 0)", []any{globOf(tokens)},
		func(r *Row) bool { return subjectMatches(pattern, r.Subject) },
	}, nil
}

func globOf(tokens []string) string {
	literal := strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]")
	globs := make([]string, len(tokens))
	for i, token := range tokens {
		if globs[i] = literal.Replace(token); token == "*" || token == ">" {
			globs[i] = "*"
		}
	}
	return strings.Join(globs, ".")
}

// subjectMatches reports whether the subject matches the NATS pattern.
func subjectMatches(pattern, subject string) bool {
	for {
		p, patternRest, patternMore := strings.Cut(pattern, ".")
		s, subjectRest, subjectMore := strings.Cut(subject, ".")
		switch {
		case p == ">":
			return s != "" || subjectMore
		case p != s && (p != "*" || s == ""), patternMore != subjectMore:
			return false
		case !patternMore:
			return true
		}
		pattern, subject = patternRest, subjectRest
	}
}
