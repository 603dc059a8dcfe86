package roles

import (
	"maps"
	"slices"
	"unicode/utf8"

	"signalbox/step"
	"signalbox/wire"
)

// maxCharter bounds the name of a charter's version, in characters.
const maxCharter = 128

// CharterReply answers charter.
type CharterReply struct {
	RoleKind       string `json:"role_kind"`
	CharterVersion string `json:"charter_version"`
	Idempotent     bool   `json:"idempotent,omitempty"`
}

func (t *turn) charterCommand(body []byte) (any, error) {
	var c struct {
		RoleKind       string  `json:"role_kind"`
		CharterVersion *string `json:"charter_version"`
	}
	if err := step.Decode(body, &c); err != nil {
		return nil, err
	}
	kind, ok := t.settings.kind(c.RoleKind)
	switch {
	case !ok:
		return nil, wire.Errorf(wire.RoleKindUnsupported, "there is no kind of role %.64q", c.RoleKind)
	case c.CharterVersion == nil:
		return nil, wire.Errorf(wire.BodyInvalid, "charter_version is missing")
	case utf8.RuneCountInString(*c.CharterVersion) > maxCharter:
		return nil, wire.Errorf(wire.BodyInvalid, "charter_version is longer than %d characters", maxCharter)
	}
	reply := CharterReply{RoleKind: kind.Name, CharterVersion: *c.CharterVersion}
	if t.control.charter(kind) == *c.CharterVersion {
		reply.Idempotent = true
		return reply, nil
	}
	t.control = t.control.Issue(kind, *c.CharterVersion)
	if err := t.store.PutControl(t.control); err != nil {
		return nil, err
	}
	t.happened("charter", "issued", map[string]any{"role_kind": kind.Name, "charter_version": *c.CharterVersion, "by": t.in.From})
	return reply, t.each(t.store.Open, func(r *Role) error {
		if r.RoleKind != kind.Name || !r.held() || r.CharterVersion == *c.CharterVersion {
			return nil
		}
		return t.again(r, CharterReissued)
	})
}

// again makes the holder of a role take it anew.
func (t *turn) again(r *Role, why Trigger) error {
	holder, err := t.agent(r.HolderAgentID)
	if err != nil {
		return err
	}
	return t.reserve(r, why, &holder)
}

// happened announces something that is about all roles.
func (t *turn) happened(key, what string, body map[string]any) {
	t.effects.Events = append(t.effects.Events, step.Happened{Key: key, What: what, Body: body})
}

// ControlReply answers control.
type ControlReply struct {
	MasterEnabled bool            `json:"master_enabled"`
	Kinds         map[string]bool `json:"kinds"` // every kind that is set
	Generation    int64           `json:"generation"`
	Idempotent    bool            `json:"idempotent,omitempty"`
}

func (t *turn) controlReply() ControlReply {
	reply := ControlReply{MasterEnabled: t.control.MasterEnabled, Kinds: map[string]bool{}, Generation: t.control.Generation}
	for _, name := range t.settings.kindNames() {
		on, set := t.control.Kinds[name]
		reply.Kinds[name] = on || !set
	}
	return reply
}

func (t *turn) controlCommand(body []byte) (any, error) {
	var c struct {
		MasterEnabled *bool           `json:"master_enabled"`
		Kinds         map[string]bool `json:"kinds"`
	}
	if err := step.Decode(body, &c); err != nil {
		return nil, err
	}
	if c.MasterEnabled == nil && len(c.Kinds) == 0 {
		return nil, wire.Errorf(wire.BodyInvalid, "neither master_enabled nor kinds is given")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Kinds)) { // the first in order is named, in every replay
		if _, ok := t.settings.kind(name); !ok {
			return nil, wire.Errorf(wire.RoleKindUnsupported, "there is no kind of role %.64q", name)
		}
	}
	before := t.control
	next, changed := before.Switch(c.MasterEnabled, c.Kinds)
	if !changed {
		reply := t.controlReply()
		reply.Idempotent = true
		return reply, nil
	}
	t.control = next
	if err := t.store.PutControl(next); err != nil {
		return nil, err
	}
	reply := t.controlReply()
	t.happened("control", "switched", map[string]any{"master_enabled": reply.MasterEnabled, "kinds": reply.Kinds,
		"generation": reply.Generation, "by": t.in.From})
	return reply, t.each(t.store.Open, func(r *Role) error {
		switch was, is := before.enabled(r.Key, t.settings), t.enabled(r.Key); {
		case was && !is:
			return t.move(r, ManagerDisabled, Change{Blocked: blockedDisabled})
		case is && !was:
			return t.attend(r)
		}
		return nil
	})
}

// CloseReply answers close_scope.
type CloseReply struct {
	Closed     []ClosedRole `json:"closed"`
	Idempotent bool         `json:"idempotent,omitempty"`
}

// ClosedRole is a role that is closed for good.
type ClosedRole struct {
	RoleKey     Key    `json:"role_key"`
	RoleKeyWire string `json:"role_key_wire"`
	Epoch       int64  `json:"epoch"`
}

// closeScopeCommand closes one role, or those of a scope of every kind that has
// scopes. What nobody has asked for yet is closed too: nobody shall.
func (t *turn) closeScopeCommand(body []byte) (any, error) {
	var c struct {
		keyed
		ProjectID string `json:"project_id"`
		ScopeID   string `json:"scope_id"`
	}
	if err := step.Decode(body, &c); err != nil {
		return nil, err
	}
	var keys []Key
	if c.given() {
		k, err := t.decode(body, &c, &c.keyed)
		if err != nil {
			return nil, err
		}
		if c.ProjectID != "" || c.ScopeID != "" {
			return nil, wire.Errorf(wire.RoleKeyMismatch, "both a role and a scope are given").WithHint("give role_key, or project_id and scope_id")
		}
		keys = []Key{k}
	} else {
		for _, kind := range t.settings.Kinds {
			if kind.Scoped {
				keys = append(keys, Key{ProjectID: c.ProjectID, RoleKind: kind.Name, ScopeID: c.ScopeID})
			}
		}
		if c.ScopeID == "" {
			return nil, wire.Errorf(wire.ScopeRequired, "scope_id is missing")
		}
		if refusal := (Key{ProjectID: c.ProjectID, RoleKind: "any", ScopeID: c.ScopeID}).shape(); refusal != nil {
			return nil, refusal
		}
	}
	roles := make([]*Role, len(keys))
	for i, k := range keys {
		var err error
		if roles[i], err = t.store.Role(k.Name()); err != nil {
			return nil, err
		}
	}
	reply := CloseReply{Closed: []ClosedRole{}, Idempotent: true}
	for i, k := range keys {
		r := roles[i]
		if r == nil {
			r = t.begin(k, string(ScopeClosed))
		}
		if r.State != Closed {
			reply.Idempotent = false
			if err := t.close(r); err != nil {
				return nil, err
			}
		}
		reply.Closed = append(reply.Closed, ClosedRole{k, k.Wire(), r.Epoch})
	}
	return reply, nil
}

func (t *turn) close(r *Role) error {
	if err := t.move(r, ScopeClosed, Change{}); err != nil {
		return err
	}
	if err := t.store.DropCandidates(r.Name()); err != nil {
		return err
	}
	return t.store.PutRole(r)
}
