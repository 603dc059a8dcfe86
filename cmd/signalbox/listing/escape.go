package listing

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
)

// joiner stands inside of emoji and of some scripts' words; it is not graphic,
// and harmless.
const joiner = '\u200d'

func harmless(r rune) bool { return unicode.IsGraphic(r) || r == joiner }

// Escape is a text in one line: control characters, line ends, characters that
// turn the direction of writing and bytes that are not UTF-8 become escapes.
func Escape(s string) string { return escape(s, false) }

// EscapeText is Escape for a text of several lines: line ends and tabs stay.
func EscapeText(s string) string { return escape(s, true) }

func escape(s string, lines bool) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !harmless(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case harmless(r), lines && (r == '\n' || r == '\t'):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// EscapeJSON is the same JSON text without control characters in its strings;
// the line ends between its tokens stay.
func EscapeJSON(s string) string {
	bad := func(r rune) bool { return r != '\n' && !harmless(r) }
	if strings.IndexFunc(s, bad) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !bad(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Cut is a text of at most width columns; what is longer ends in "…".
func Cut(s string, width int) string { return runewidth.Truncate(s, width, "…") }
