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

// The codes of the machine agents.
const (
	AgentNotFound     Code = "AGENT_NOT_FOUND"    // nobody has registered under this id
	AgentDeregistered Code = "AGENT_DEREGISTERED" // it has left; only a registration brings it back
	StaleGeneration   Code = "STALE_GENERATION"   // another registration of the id has taken over
	ReservedID        Code = "RESERVED_ID"        // the id is the bus's own
	TTLInvalid        Code = "TTL_INVALID"        // a lease shorter or longer than one may be
)

// The codes of the machine roles.
const (
	RoleKeyInvalid           Code = "ROLE_KEY_INVALID"            // no role key, or one that is no object of three texts
	RoleKeyFieldUnsupported  Code = "ROLE_KEY_FIELD_UNSUPPORTED"  // a field that a role key does not have
	RoleKeyMismatch          Code = "ROLE_KEY_MISMATCH"           // role_key and role_key_wire name two roles
	ProjectIDInvalid         Code = "PROJECT_ID_INVALID"          // not prj_ and 22 characters
	RoleKindUnsupported      Code = "ROLE_KIND_UNSUPPORTED"       // not a kind of roles.kinds
	RoleScopeForbidden       Code = "ROLE_SCOPE_FORBIDDEN"        // a scope for a kind that has none
	ScopeRequired            Code = "SCOPE_REQUIRED"              // no scope for a kind that has one
	ScopeIDInvalid           Code = "SCOPE_ID_INVALID"            // not scp_ and 22 characters
	RoleKeyWireInvalid       Code = "ROLE_KEY_WIRE_INVALID"       // not base64url of a JSON object
	RoleKeyWirePrefix        Code = "ROLE_KEY_WIRE_PREFIX"        // does not begin with rk2.
	RoleKeyNonCanonical      Code = "ROLE_KEY_NON_CANONICAL"      // a second way to write a key
	RoleKeyWireTooLong       Code = "ROLE_KEY_WIRE_TOO_LONG"      // more than 512 bytes
	InvalidRoleTransition    Code = "INVALID_ROLE_TRANSITION"     // the role's state does not allow it
	EnsureRoleRequestInvalid Code = "ENSURE_ROLE_REQUEST_INVALID" // no known trigger, or no cause
	ActivationAckInvalid     Code = "ACTIVATION_ACK_INVALID"      // an ack that lacks a part
	StaleEpoch               Code = "STALE_EPOCH"                 // acts for an activation that is over
	HolderMismatch           Code = "HOLDER_MISMATCH"             // acts for a role that another agent has
	CharterVersionMismatch   Code = "CHARTER_VERSION_MISMATCH"    // acknowledges another charter than the role's
	HolderLeaseExpired       Code = "HOLDER_LEASE_EXPIRED"        // the holder's own lease is over
	RoleCandidateUnavailable Code = "ROLE_CANDIDATE_UNAVAILABLE"  // the agent may not be elected now
	RoleManagerDisabled      Code = "ROLE_MANAGER_DISABLED"       // elections are switched off
	RoleClosed               Code = "ROLE_CLOSED"                 // the role's scope is closed for good
	RoleLimit                Code = "ROLE_LIMIT"                  // there are as many roles, or candidates of one, as may be
)

// The codes of the machine inbox.
const (
	RecipientRequired Code = "RECIPIENT_REQUIRED" // several have the dead letter; say whose
	NotRedrivable     Code = "NOT_REDRIVABLE"     // a dead letter that never was a delivery
)

// The codes of the machine assign.
const (
	AssignNotFound          Code = "ASSIGN_NOT_FOUND"          // no such job
	AssignExists            Code = "ASSIGN_EXISTS"             // the job_id is taken by another job
	AssignDeadlineForbidden Code = "ASSIGN_DEADLINE_FORBIDDEN" // a create that gives a deadline
	AssignClaimed           Code = "ASSIGN_CLAIMED"            // another agent has claimed it first
	AssignNotDue            Code = "ASSIGN_NOT_DUE"            // a claim before the job is handed out
	AssignNotRunning        Code = "ASSIGN_NOT_RUNNING"        // a heartbeat of an attempt that has not begun
	AssignStatusUnknown     Code = "ASSIGN_STATUS_UNKNOWN"     // a report with a word that means nothing
	AssignAttemptMismatch   Code = "ASSIGN_ATTEMPT_MISMATCH"   // about another attempt than the current one, or none
	AssignWorkerMismatch    Code = "ASSIGN_WORKER_MISMATCH"    // not from the worker of the attempt
	AssignTerminal          Code = "ASSIGN_TERMINAL"           // the job has ended
	AssignNotRetryable      Code = "ASSIGN_NOT_RETRYABLE"      // a retry of a job that is live or has succeeded
	AssignRetryExhausted    Code = "ASSIGN_RETRY_EXHAUSTED"    // no retries are left
	AssignDedupConflict     Code = "ASSIGN_DEDUP_CONFLICT"     // a retry whose dedup_key another live job has
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

	AgentNotFound: http.StatusNotFound, AgentDeregistered: http.StatusConflict, StaleGeneration: http.StatusConflict,
	ReservedID: http.StatusBadRequest, TTLInvalid: http.StatusBadRequest,

	RecipientRequired: http.StatusBadRequest, NotRedrivable: http.StatusConflict,

	AssignNotFound: http.StatusNotFound, AssignExists: http.StatusConflict, AssignDeadlineForbidden: http.StatusBadRequest,
	AssignClaimed: http.StatusConflict, AssignNotDue: http.StatusConflict, AssignNotRunning: http.StatusConflict,
	AssignStatusUnknown: http.StatusBadRequest, AssignAttemptMismatch: http.StatusConflict, AssignWorkerMismatch: http.StatusForbidden,
	AssignTerminal: http.StatusConflict, AssignNotRetryable: http.StatusConflict, AssignRetryExhausted: http.StatusConflict,
	AssignDedupConflict: http.StatusConflict,

	RoleKeyInvalid: http.StatusBadRequest, RoleKeyFieldUnsupported: http.StatusBadRequest, RoleKeyMismatch: http.StatusBadRequest,
	ProjectIDInvalid: http.StatusBadRequest, RoleKindUnsupported: http.StatusBadRequest, RoleScopeForbidden: http.StatusBadRequest,
	ScopeRequired: http.StatusBadRequest, ScopeIDInvalid: http.StatusBadRequest, RoleKeyWireInvalid: http.StatusBadRequest,
	RoleKeyWirePrefix: http.StatusBadRequest, RoleKeyNonCanonical: http.StatusBadRequest, RoleKeyWireTooLong: http.StatusBadRequest,
	InvalidRoleTransition: http.StatusConflict, EnsureRoleRequestInvalid: http.StatusBadRequest,
	ActivationAckInvalid: http.StatusBadRequest, StaleEpoch: http.StatusConflict, HolderMismatch: http.StatusForbidden,
	CharterVersionMismatch: http.StatusConflict, HolderLeaseExpired: http.StatusConflict,
	RoleCandidateUnavailable: http.StatusConflict, RoleManagerDisabled: http.StatusConflict, RoleClosed: http.StatusConflict,
	RoleLimit: http.StatusTooManyRequests,
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
