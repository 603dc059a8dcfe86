package roles

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"signalbox/wire"
)

// Forms and limits of role keys.
const (
	wirePrefix = "rk2."
	maxWire    = 512 // bytes of a wire form
	maxKind    = 64  // bytes of a kind's name
	idLength   = 22  // characters of a project's or scope's id after its prefix

	projectPrefix = "prj_"
	scopePrefix   = "scp_"
)

// Key names a role: one of its kind a project, or one a scope of a project
// where the kind is scoped.
type Key struct {
	ProjectID string `json:"project_id"`         // prj_ and 22 characters
	RoleKind  string `json:"role_kind"`          // one of the setting roles.kinds
	ScopeID   string `json:"scope_id,omitempty"` // scp_ and 22 characters; "" for none
}

// Name is the role as recipients and headers write it,
// <project>/<kind>[/<scope>].
func (k Key) Name() string {
	if k.ScopeID == "" {
		return k.ProjectID + "/" + k.RoleKind
	}
	return k.ProjectID + "/" + k.RoleKind + "/" + k.ScopeID
}

// Subject is the role as subjects of events write it,
// <project>.<kind>.<scope or _>.
func (k Key) Subject() string {
	scope := k.ScopeID
	if scope == "" {
		scope = wire.NoScope
	}
	return k.ProjectID + "." + k.RoleKind + "." + scope
}

// Wire is the one wire form of the key: rk2. and base64url without padding of
// the key's JSON.
func (k Key) Wire() string {
	return wirePrefix + base64.RawURLEncoding.EncodeToString(k.canonical())
}

// canonical is the key's JSON in the field order of the wire form. Its values
// have no character that JSON escapes.
func (k Key) canonical() []byte {
	b := append([]byte(`{"project_id":"`), k.ProjectID...)
	b = append(append(b, `","role_kind":"`...), k.RoleKind...)
	if k.ScopeID != "" {
		b = append(append(b, `","scope_id":"`...), k.ScopeID...)
	}
	return append(b, `"}`...)
}

// shape checks the parts by themselves, without knowing the kinds.
func (k Key) shape() *wire.Error {
	switch {
	case !prefixed(k.ProjectID, projectPrefix):
		return wire.Errorf(wire.ProjectIDInvalid, "project_id %.64q is not %s and %d characters of A-Z a-z 0-9 _ -", k.ProjectID, projectPrefix, idLength)
	case !wire.ValidID(k.RoleKind) || len(k.RoleKind) > maxKind:
		return wire.Errorf(wire.RoleKindUnsupported, "role_kind %.64q is not the name of a kind", k.RoleKind)
	case k.ScopeID != "" && !prefixed(k.ScopeID, scopePrefix):
		return wire.Errorf(wire.ScopeIDInvalid, "scope_id %.64q is not %s and %d characters of A-Z a-z 0-9 _ -", k.ScopeID, scopePrefix, idLength)
	}
	return nil
}

func prefixed(id, prefix string) bool {
	return len(id) == len(prefix)+idLength && strings.HasPrefix(id, prefix) && wire.ValidID(id)
}

// allowed checks the key against the kinds that are set.
func (k Key) allowed(s *Settings) *wire.Error {
	kind, ok := s.kind(k.RoleKind)
	switch {
	case !ok:
		return wire.Errorf(wire.RoleKindUnsupported, "there is no kind of role %.64q", k.RoleKind).
			WithHint("the kinds are those of the setting roles.kinds: " + strings.Join(s.kindNames(), ", "))
	case kind.Scoped && k.ScopeID == "":
		return wire.Errorf(wire.ScopeRequired, "a role of kind %q belongs to a scope: scope_id is missing", k.RoleKind)
	case !kind.Scoped && k.ScopeID != "":
		return wire.Errorf(wire.RoleScopeForbidden, "there is one %q a project: it has no scope_id", k.RoleKind)
	}
	return nil
}

// ParseName reads the form <project>/<kind>[/<scope>]; it does not check
// whether the kind exists. The refusal names the part that is wrong.
func ParseName(name string) (Key, *wire.Error) {
	parts := strings.Split(name, "/")
	if len(parts) < 2 || len(parts) > 3 {
		return Key{}, wire.Errorf(wire.RoleKeyInvalid, "role %.200q is not <project>/<kind>[/<scope>]", name)
	}
	k := Key{ProjectID: parts[0], RoleKind: parts[1]}
	if len(parts) == 3 {
		if k.ScopeID = parts[2]; k.ScopeID == "" {
			return k, wire.Errorf(wire.ScopeIDInvalid, "role %.200q has an empty scope", name)
		}
	}
	return k, k.shape()
}

// ParseWire reads a wire form; it does not check whether the kind exists.
func ParseWire(s string) (Key, *wire.Error) {
	if len(s) > maxWire {
		return Key{}, wire.Errorf(wire.RoleKeyWireTooLong, "role_key_wire has %d bytes, at most %d are allowed", len(s), maxWire)
	}
	encoded, ok := strings.CutPrefix(s, wirePrefix)
	if !ok {
		return Key{}, wire.Errorf(wire.RoleKeyWirePrefix, "role_key_wire %.64q does not begin with %s", s, wirePrefix)
	}
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return Key{}, wire.Errorf(wire.RoleKeyWireInvalid, "role_key_wire is not base64url without padding after %s", wirePrefix)
	}
	if !json.Valid(raw) {
		return Key{}, wire.Errorf(wire.RoleKeyWireInvalid, "role_key_wire does not encode a JSON object")
	}
	k, refusal := parseObject(raw)
	if refusal != nil {
		if refusal.Code == wire.RoleKeyInvalid {
			refusal.Code = wire.RoleKeyWireInvalid
		}
		return Key{}, refusal
	}
	if k.Wire() != s {
		return Key{}, wire.Errorf(wire.RoleKeyNonCanonical, "role_key_wire is a second way to write a key").
			WithHint("the one way is " + k.Wire())
	}
	return k, nil
}

// parseObject reads {"project_id", "role_kind"[, "scope_id"]}. It reads token by
// token, since a field that is repeated, or written in another case, would pass
// a decoder into a struct.
func parseObject(raw []byte) (Key, *wire.Error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return Key{}, wire.Errorf(wire.RoleKeyInvalid, "a role key is a JSON object of project_id, role_kind and scope_id")
	}
	var k Key
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return Key{}, wire.Errorf(wire.RoleKeyInvalid, "the role key is not JSON")
		}
		value, refusal := keyField(&k, name)
		if refusal != nil {
			return Key{}, refusal
		}
		if seen[name] {
			return Key{}, wire.Errorf(wire.RoleKeyInvalid, "the role key has %s twice", name)
		}
		seen[name] = true
		t, err = dec.Token()
		if err != nil {
			return Key{}, wire.Errorf(wire.RoleKeyInvalid, "the role key is not JSON")
		}
		text, ok := t.(string)
		if !ok {
			return Key{}, wire.Errorf(value.code, "%s of a role key is a text", name)
		}
		if text == "" && name == "scope_id" {
			return Key{}, wire.Errorf(wire.ScopeIDInvalid, "scope_id is empty").WithHint("leave it out for a kind without scopes")
		}
		*value.part = text
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return Key{}, wire.Errorf(wire.RoleKeyInvalid, "the role key is not JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Key{}, wire.Errorf(wire.RoleKeyInvalid, "there is something after the role key")
	}
	return k, k.shape()
}

// part is a field of a key and what is said when it is wrong.
type part struct {
	part *string
	code wire.Code
}

func keyField(k *Key, name string) (part, *wire.Error) {
	switch name {
	case "project_id":
		return part{&k.ProjectID, wire.ProjectIDInvalid}, nil
	case "role_kind":
		return part{&k.RoleKind, wire.RoleKindUnsupported}, nil
	case "scope_id":
		return part{&k.ScopeID, wire.ScopeIDInvalid}, nil
	}
	return part{}, wire.Errorf(wire.RoleKeyFieldUnsupported, "a role key has no field %.64q", name)
}

// keyed is the part of a command's body that names a role.
type keyed struct {
	RoleKey     json.RawMessage `json:"role_key"`
	RoleKeyWire *string         `json:"role_key_wire"`
}

// given reports whether the body names a role at all.
func (b keyed) given() bool { return b.RoleKey != nil || b.RoleKeyWire != nil }

// key reads the role that a body names in either form; both must say the same.
func (b keyed) key() (Key, *wire.Error) {
	if !b.given() {
		return Key{}, wire.Errorf(wire.RoleKeyInvalid, "role_key is missing").
			WithHint(`name the role by role_key {"project_id","role_kind"[,"scope_id"]} or by role_key_wire`)
	}
	var k, w Key
	var refusal *wire.Error
	if b.RoleKey != nil {
		if k, refusal = parseObject(b.RoleKey); refusal != nil {
			return Key{}, refusal
		}
	}
	if b.RoleKeyWire != nil {
		if w, refusal = ParseWire(*b.RoleKeyWire); refusal != nil {
			return Key{}, refusal
		}
		if b.RoleKey == nil {
			return w, nil
		}
		if w != k {
			return Key{}, wire.Errorf(wire.RoleKeyMismatch, "role_key is %s and role_key_wire is %s", k.Name(), w.Name())
		}
	}
	return k, nil
}
