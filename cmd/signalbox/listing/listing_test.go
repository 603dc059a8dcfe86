package listing_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/mattn/go-runewidth"

	"signalbox/cmd/signalbox/listing"
)

var columns = []listing.Column{
	{Title: "ID", Right: true, Whole: true, Usual: 6}, {Title: "NAME", Min: 4, Usual: 10}, {Title: "TEXT", Min: 8, Usual: 20},
}

var header = []string{"id", "name", "text"}

// nasty are texts that would steer a terminal, break a table or are no UTF-8.
var nasty = []string{
	"\x1b[2J\x1b]0;title\x07", "two\nlines\tand\r\x00", "\u009b31mred", "\u202egnp.exe", "\xff\xfe", "\U000e0001tag", "wide 日本語 and 👩‍💻",
	strings.Repeat("long ", 200),
}

func records() []listing.Record {
	var list []listing.Record
	for i, text := range nasty {
		id := string(rune('1' + i))
		list = append(list, listing.Record{Cells: []string{id, text, text}, JSON: map[string]string{"id": id, "text": text}, CSV: []string{id, "n", text}})
	}
	return list
}

func printed(t *testing.T, f listing.Format, endless bool, pages ...[]listing.Record) string {
	t.Helper()
	var b bytes.Buffer
	l := listing.New(&b, f, columns, header, endless)
	for _, page := range pages {
		if err := l.Write(page...); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestATableFitsAndNothingInItSteersTheTerminal(t *testing.T) {
	for _, endless := range []bool{false, true} {
		text := printed(t, listing.Table, endless, records(), records())
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if want := 1 + 2*len(nasty); len(lines) != want {
			t.Errorf("%d lines, not %d:\n%s", len(lines), want, text)
		}
		for _, line := range lines {
			if w := runewidth.StringWidth(line); w > 120 {
				t.Errorf("a line of %d columns: %s", w, line)
			}
			for _, r := range line {
				if !unicode.IsGraphic(r) && r != '\u200d' {
					t.Errorf("%U in %q", r, line)
				}
			}
		}
		if !strings.Contains(text, `\x1b[2J`) || !strings.Contains(text, `\xff\xfe`) || !strings.Contains(text, "日本語") {
			t.Errorf("texts are not there:\n%s", text)
		}
	}
}

func TestLaterPagesKeepTheColumnsOfTheFirst(t *testing.T) {
	text := printed(t, listing.Table, false,
		[]listing.Record{{Cells: []string{"1", "abcd", "short"}}},
		[]listing.Record{{Line: "a line of its own"}, {Cells: []string{"2", "abcdefgh", "short"}}})
	want := "ID  NAME  TEXT\n 1  abcd  short\na line of its own\n 2  abc…  short\n"
	if text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

func TestJSONHoldsTheSameTextAndNoControlCharacter(t *testing.T) {
	text := printed(t, listing.JSON, false, records()[:3], nil, records()[3:])
	var got []map[string]string
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for i, r := range records() {
		raw, err := json.Marshal(r.JSON)
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]string
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got[i], want) {
			t.Errorf("got %q, want %q", got[i], want)
		}
	}
	lines := printed(t, listing.JSONL, false, records())
	if n := strings.Count(lines, "\n"); n != len(nasty) {
		t.Errorf("%d JSON lines, not %d", n, len(nasty))
	}
	for _, r := range text + lines {
		if r != '\n' && !unicode.IsGraphic(r) && r != '\u200d' {
			t.Errorf("%U in the JSON", r)
		}
	}
}

func TestCSVInAFileIsExact(t *testing.T) {
	got, err := csv.NewReader(strings.NewReader(printed(t, listing.CSV, false, records()[:1], records()[1:]))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got[0], header) {
		t.Errorf("header %q", got[0])
	}
	for i, text := range nasty {
		// RFC 4180 readers take \r\n inside of quotes for \n; there is none here.
		if got[i+1][2] != text {
			t.Errorf("got %q, want %q", got[i+1][2], text)
		}
	}
}

func TestAnEmptyListIsStillAList(t *testing.T) {
	for f, want := range map[listing.Format]string{
		listing.Table: "ID  NAME  TEXT\n", listing.JSON: "[]\n", listing.JSONL: "", listing.CSV: "id,name,text\n",
	} {
		if got := printed(t, f, false); got != want {
			t.Errorf("%s: %q, not %q", f, got, want)
		}
	}
}

func TestTextOfSeveralLinesKeepsThem(t *testing.T) {
	if got := listing.EscapeText("a\tb\n\x1b[31mc\r\n"); got != "a\tb\n\\x1b[31mc\\r\n" {
		t.Errorf("got %q", got)
	}
}
