package audit_test

import (
	"context"
	"slices"
	"testing"

	"signalbox/audit"
)

// What a person types is data, whatever it looks like, with the full text of
// the index and without it.
func TestSearchTakesTextAsItIs(t *testing.T) {
	bodies := []string{
		1:  `deploy failed on host-7`,
		2:  `failed deploy`,
		3:  `{"task":"deploy","note":"say \"hi\" now"}`,
		4:  `deployment 100% green`,
		5:  `AND OR NOT NEAR`,
		6:  `nothing to see 🚂 here`,
		7:  "before\x00after",
		8:  "deploy failed \xff",
		9:  `Über straße`,
		10: `subject-only`,
	}
	var rows []*audit.Row
	for _, body := range bodies[1:] {
		rows = append(rows, &audit.Row{Subject: "bus.msg.a.agent.zeta", Body: []byte(body)})
	}
	all := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	cases := []struct {
		search string
		want   []int64
	}{
		{"deploy", []int64{1, 2, 3}},
		{"DEPLOY failed", []int64{1, 2}},
		{`"deploy failed"`, []int64{1}},
		{`"failed deploy`, []int64{2}}, // a quote that is not closed
		{"deploy*", []int64{1, 2, 3, 4}},
		{`"failed dep"*`, []int64{2}},
		{"dep", nil},
		{"host-7", []int64{1}},
		{"-7 host", []int64{1}},
		{"-deploy", []int64{1, 2, 3}},
		{"AND", []int64{5}},
		{"deploy OR AND", nil},
		{"NOT NEAR", []int64{5}},
		{"NEAR(AND OR)", nil}, // one term, so a phrase
		{"body:deploy", nil},
		{"^deploy", []int64{1, 2, 3}},
		{"{task deploy}", []int64{3}},
		{`say "hi`, []int64{3}},
		{`"`, nil}, {`""`, nil}, {`"""`, nil}, {"*", nil}, {"**", nil}, {"%", nil}, {"-", nil}, {"'", nil}, {";", nil}, {`\`, nil}, {"\x00", nil}, {" \t\n", nil},
		{"100%", []int64{4}},
		{"% deploy", []int64{1, 2, 3}}, // what is no word does not count
		{"deploy -*", []int64{1, 2, 3}},
		{"🚂", nil},
		{"🚂 see", []int64{6}},
		{"before", []int64{7}},
		{"after", []int64{7}},
		{"before\x00after", []int64{7}},
		{"uber STRASSE", nil},
		{"uber straße", []int64{9}},
		{"zeta", all},
		{"agent.zeta", all},
		{`') OR 1=1 --`, nil},
		{"\xff\xfe", nil},
	}
	ctx := context.Background()
	for _, state := range []string{"no index", "index without full text", "full text"} {
		t.Run(state, func(t *testing.T) {
			l := newLedger(t)
			l.write(rows)
			if state != "no index" {
				ix := l.index(audit.IndexOptions{Search: state == "full text"})
				if err := ix.CatchUp(ctx); err != nil {
					t.Fatal(err)
				}
				defer ix.Close()
			}
			r := l.reader()
			for _, c := range cases {
				page, err := r.Log(ctx, audit.Filter{Search: c.search})
				if err != nil {
					t.Errorf("%q: %v", c.search, err)
					continue
				}
				if got := rowIDs(page.Rows); !slices.Equal(got, append([]int64{}, c.want...)) {
					t.Errorf("%q found rows %v, want %v", c.search, got, c.want)
				}
			}
		})
	}
}

func TestSearchTurnedOnLaterAndOffAgain(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	r := l.reader()
	for i, on := range []bool{false, true, false, true} {
		l.write(numbered(i*20+1, 20))
		ix := l.index(audit.IndexOptions{Search: on})
		if err := ix.CatchUp(ctx); err != nil {
			t.Fatal(err)
		}
		if err := ix.Close(); err != nil {
			t.Fatal(err)
		}
		if _, search := r.Indexed(ctx); on != (search == int64(i+1)*20) {
			t.Errorf("round %d: the full text is at %d", i, search)
		}
		for _, word := range []string{"word1", "word20", "word21"} {
			page := must[audit.Page](t)(r.Log(ctx, audit.Filter{Search: word}))
			if found := len(page.Rows) == 1; found != (word != "word21" || i > 0) {
				t.Errorf("round %d: %q is in %d rows", i, word, len(page.Rows))
			}
		}
	}
}
