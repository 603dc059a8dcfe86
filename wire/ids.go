package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Bridge is the reserved sender id of the bridge itself. Nobody may register
// it and nothing is delivered to it.
const Bridge = "signalbox"

// NoScope stands for "no scope" where a subject needs a token. It is reserved
// as an agent id.
const NoScope = "_"

// Limits of ids, in bytes.
const (
	MaxID          = 128 // agent ids, topic tokens, correlation and trace ids
	MaxTopicTokens = 8
)

// ValidID reports whether s is an agent id, a topic token or an id of a
// machine's own: 1 to 128 of A-Z a-z 0-9 _ and -.
func ValidID(s string) bool {
	if len(s) == 0 || len(s) > MaxID {
		return false
	}
	for i := range len(s) {
		if !idByte(s[i]) {
			return false
		}
	}
	return true
}

func idByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// ValidTopic reports whether s is 1 to 8 id tokens joined by dots.
func ValidTopic(s string) bool {
	n := 0
	for token := range strings.SplitSeq(s, ".") {
		if n++; n > MaxTopicTokens || !ValidID(token) {
			return false
		}
	}
	return true
}

// Visible reports whether s is 1 to 128 visible ASCII characters, which is
// what a correlation id, a trace id or a message id may be.
func Visible(s string) bool {
	if len(s) == 0 || len(s) > MaxID {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// DeriveID makes the UUIDv7 (RFC 9562) of something that a message causes or
// leaves out: its time is the log's, its other bits are those of SHA-256 over
// the place of the message and the purpose. The same place and purpose always
// give the same id, so a replay names everything alike.
func DeriveID(at time.Time, incarnation int64, seq uint64, purpose string) string {
	var buf [64]byte
	b := binary.BigEndian.AppendUint64(buf[:0], uint64(incarnation))
	b = binary.BigEndian.AppendUint64(b, seq)
	b = append(b, purpose...)
	sum := sha256.Sum256(b)
	var id uuid.UUID
	copy(id[6:], sum[:10])
	ms := uint64(at.UnixMilli())
	id[0], id[1], id[2] = byte(ms>>40), byte(ms>>32), byte(ms>>24)
	id[3], id[4], id[5] = byte(ms>>16), byte(ms>>8), byte(ms)
	id[6] = 0x70 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
	return id.String()
}
