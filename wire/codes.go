package wire

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Code is the stable name of a refusal. Codes are never renamed or reused.
type Code string

// The codes that every part of the bus may answer.
const (
	SubjectInvalid    Code = "SUBJECT_INVALID"    // the subject's shape is not of the bus
	IDInvalid         Code = "ID_INVALID"         // an id has characters or a length it may not have
	HeaderInvalid     Code = "HEADER_INVALID"     // a Bus- header has a value it may not have
	BodyInvalid       Code = "BODY_INVALID"       // a command's body is not the JSON object it must be
	BodyTooLarge      Code = "BODY_TOO_LARGE"     // larger than the bus carries
	UnknownCommand    Code = "UNKNOWN_COMMAND"    // no such machine or verb
	APIOnly           Code = "API_ONLY"           // the verb exists as a request only
	RequestIDInvalid  Code = "REQUEST_ID_INVALID" // a Nats-Msg-Id that the bridge cannot keep
	IdentityMismatch  Code = "IDENTITY_MISMATCH"  // a body names another sender than the subject
	NotFound          Code = "NOT_FOUND"          // no such row
	Conflict          Code = "CONFLICT"           // the same request id came with another content
	TooManyRequests   Code = "TOO_MANY_REQUESTS"  // a queue of the bridge is full
	Lagging           Code = "LAGGING"            // the register is too far behind the log
	DiskLow           Code = "DISK_LOW"           // too little free disk to take requests
	NotReady          Code = "NOT_READY"          // starting, stopping, or the log is out of reach
	OutcomePending    Code = "OUTCOME_PENDING"    // appended, but not folded within the bound
	Internal          Code = "INTERNAL"           // a fault of the bridge; it is in its log
	OutboxRefused     Code = "OUTBOX_REFUSED"     // the server will never take this event or message
	ReservedRecipient Code = "RESERVED_RECIPIENT" // nothing is delivered to the bridge itself
)

// statuses are the HTTP-like status codes of the codes above.
var statuses = map[Code]int{
	SubjectInvalid: http.StatusBadRequest, IDInvalid: http.StatusBadRequest, HeaderInvalid: http.StatusBadRequest,
	BodyInvalid: http.StatusBadRequest, BodyTooLarge: http.StatusBadRequest, UnknownCommand: http.StatusNotFound,
	APIOnly: http.StatusBadRequest, RequestIDInvalid: http.StatusBadRequest, IdentityMismatch: http.StatusForbidden,
	NotFound: http.StatusNotFound, Conflict: http.StatusConflict, TooManyRequests: http.StatusTooManyRequests,
	Lagging: http.StatusServiceUnavailable, DiskLow: http.StatusServiceUnavailable,
	NotReady: http.StatusServiceUnavailable, OutcomePending: http.StatusServiceUnavailable,
	Internal: http.StatusInternalServerError, OutboxRefused: http.StatusInternalServerError,
	ReservedRecipient: http.StatusBadRequest,
}

// Status is the status that a reply carries for the code: 400 refused input,
// 403 identity or authority, 404 unknown, 409 conflict, 429 limits, 503 not
// ready, 500 internal.
func (c Code) Status() int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Error is a refusal: what was wrong, and what to do.
type Error struct {
	Code    Code            `json:"code"`
	Message string          `json:"message"`
	Hint    string          `json:"hint,omitempty"`
	Current json.RawMessage `json:"current,omitempty"` // the state that speaks against it
}

// Errorf makes a refusal.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithHint adds what the caller can do.
func (e *Error) WithHint(hint string) *Error {
	e.Hint = hint
	return e
}

// Error implements error.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Body is the refusal as a reply carries it: {"error":{…}}.
func (e *Error) Body() []byte {
	b, err := json.Marshal(map[string]*Error{"error": e})
	if err != nil { // Current was no JSON
		b, _ = json.Marshal(map[string]*Error{"error": {Code: e.Code, Message: e.Message, Hint: e.Hint}})
	}
	return b
}
