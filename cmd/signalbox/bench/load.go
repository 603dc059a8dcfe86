package bench

import (
	"fmt"
	"math/rand/v2"
	"strconv"
)

// How many senders and recipients take part.
const (
	senders    = 50
	recipients = 50
)

// minSize is the smallest body: its number and a little text.
const minSize = 32

// Headers of a message; the register's own names for them.
const (
	headerCorrelation = "Bus-Correlation-Id"
	headerTrace       = "Bus-Trace-Id"
)

// load makes messages: random ids, random words, and in the body the number of
// the message.
type load struct {
	random    *rand.Rand
	phase     int
	publisher int
	size      int
	senders   []string
	receivers []string
	subjects  []string // senders × recipients
	words     []string
	id        [32]byte
}

// letter is one message of a load. Its body is valid until the next one.
type letter struct {
	sender, receiver, subject string
	correlation, trace        string
	body                      []byte
}

// recipientID is the id of recipient i.
func recipientID(i int) string { return fmt.Sprintf("agent-%02d", i) }

func newLoad(phase, publisher, size int) *load {
	l := &load{random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), phase: phase, publisher: publisher, size: size}
	for i := range senders {
		l.senders = append(l.senders, fmt.Sprintf("sender-%02d", i))
	}
	for i := range recipients {
		l.receivers = append(l.receivers, recipientID(i))
	}
	for _, s := range l.senders {
		for _, r := range l.receivers {
			l.subjects = append(l.subjects, "bus.msg."+s+".agent."+r)
		}
	}
	for _, a := range []string{"ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "wu", "xa"} {
		for _, b := range []string{"bar", "del", "fin", "gor", "hum", "kat", "len", "mir", "nos", "pus", "ran", "sel", "tis", "von", "wur", "xan"} {
			l.words = append(l.words, a+b)
		}
	}
	return l
}

// letter makes message n; buf is where its body goes.
func (l *load) letter(n int, buf []byte) letter {
	s, r := l.random.IntN(senders), l.random.IntN(recipients)
	body := appendNumber(buf[:0], l.phase, l.publisher, n)
	for len(body) < l.size {
		words := l.random.Uint64()
		for range 8 {
			body = append(body, ' ')
			body = append(body, l.words[byte(words)]...)
			words >>= 8
		}
	}
	return letter{sender: l.senders[s], receiver: l.receivers[r], subject: l.subjects[s*recipients+r],
		correlation: l.randomID(), trace: l.randomID(), body: body[:l.size]}
}

// randomID is 128 random bits in hex.
func (l *load) randomID() string {
	const digits = "0123456789abcdef"
	for half := range 2 {
		v := l.random.Uint64()
		for i := range 16 {
			l.id[half*16+i] = digits[v&15]
			v >>= 4
		}
	}
	return string(l.id[:])
}

// The number that a body begins with: phase, publisher, message.
const (
	numberWidth  = 2 + 1 + 2 + 1 + 9
	maxPhases    = 99
	maxPublisher = 16
)

func appendNumber(b []byte, phase, publisher, n int) []byte {
	b = appendPadded(b, phase, 2)
	b = append(b, '.')
	b = appendPadded(b, publisher, 2)
	b = append(b, '.')
	return appendPadded(b, n, 9)
}

func appendPadded(b []byte, v, width int) []byte {
	var room [20]byte
	text := strconv.AppendInt(room[:0], int64(v), 10)
	for range width - len(text) {
		b = append(b, '0')
	}
	return append(b, text...)
}

// parseNumber reads what appendNumber wrote.
func parseNumber(s string) (phase, publisher, n int, ok bool) {
	if len(s) < numberWidth || s[2] != '.' || s[5] != '.' {
		return 0, 0, 0, false
	}
	var errs [3]error
	phase, errs[0] = strconv.Atoi(s[:2])
	publisher, errs[1] = strconv.Atoi(s[3:5])
	n, errs[2] = strconv.Atoi(s[6:numberWidth])
	return phase, publisher, n, errs == [3]error{}
}
