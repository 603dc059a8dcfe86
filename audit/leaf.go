package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"signalbox/wire"
)

// LeafVersion is the version of the leaf's format.
const LeafVersion = 1

// LeafInput is what a leaf is made of: the message as it came, and its place.
type LeafInput struct {
	Stream      string // of the incarnation
	Incarnation int64
	Seq         uint64
	AtNS        int64
	Subject     string
	Header      wire.Header
	Body        []byte
}

// Leaf is the leaf hash of a row (RFC 6962 prefix 0x00, format version 1):
// SHA-256 of 0x00, 0x01, lp(stream), u64 incarnation, u64 seq, i64 nanoseconds,
// lp(subject), u32 count of pairs, headers sorted by name with values in wire
// order as lp(name) lp(value), lp(body). Integers are big-endian; lp is a u32
// length and the bytes. buf is scratch space and may be nil; it is returned
// grown for the next call.
func Leaf(in LeafInput, buf []byte) ([sha256.Size]byte, []byte) {
	b := append(buf[:0], 0x00, LeafVersion)
	b = appendLP(b, in.Stream)
	b = binary.BigEndian.AppendUint64(b, uint64(in.Incarnation))
	b = binary.BigEndian.AppendUint64(b, in.Seq)
	b = binary.BigEndian.AppendUint64(b, uint64(in.AtNS))
	b = appendLP(b, in.Subject)
	b = appendPairs(b, in.Header)
	b = appendLP(b, in.Body)
	return sha256.Sum256(b), b
}

// appendPairs appends the count of name-value pairs and the pairs.
func appendPairs(b []byte, h wire.Header) []byte {
	count := 0
	for _, values := range h {
		count += len(values)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(count))
	var room [16]string
	for _, name := range sortedNames(h, room[:0]) {
		for _, value := range h[name] {
			b = appendLP(b, name)
			b = appendLP(b, value)
		}
	}
	return b
}

func appendLP[T string | []byte](b []byte, s T) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func sortedNames(h wire.Header, room []string) []string {
	for name := range h {
		room = append(room, name)
	}
	slices.Sort(room)
	return room
}
