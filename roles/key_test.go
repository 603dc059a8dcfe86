package roles

import (
	"encoding/base64"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"signalbox/wire"
)

func wireOf(text string) string {
	return wirePrefix + base64.RawURLEncoding.EncodeToString([]byte(text))
}

// Each thing that can be wrong with a role key has its code; one wrong key is
// never taken for another.
func TestEachWrongKeyHasItsCode(t *testing.T) {
	one := string(ctoOne.canonical())
	quote := func(s string) string { return `"` + s + `"` }
	for _, c := range []struct {
		body string
		want wire.Code
	}{
		{`{"role_key":` + one + `}`, ""},
		{`{"role_key_wire":` + quote(ctoOne.Wire()) + `}`, ""},
		{`{"role_key":` + one + `,"role_key_wire":` + quote(ctoOne.Wire()) + `}`, ""},
		{`{"role_key":{"role_kind":"cto","project_id":"` + projectOne + `"}}`, ""}, // an object has no order
		{`{}`, wire.RoleKeyInvalid},
		{`{"role_key":null}`, wire.RoleKeyInvalid},
		{`{"role_key":"cto"}`, wire.RoleKeyInvalid},
		{`{"role_key":[]}`, wire.RoleKeyInvalid},
		{`{"role_key":{"project_id":"` + projectOne + `","project_id":"` + projectOne + `","role_kind":"cto"}}`, wire.RoleKeyInvalid},
		{`{"role_key":{"project_id":"` + projectOne + `","role_kind":"cto","more":1}}`, wire.RoleKeyFieldUnsupported},
		{`{"role_key":{"Project_Id":"` + projectOne + `","role_kind":"cto"}}`, wire.RoleKeyFieldUnsupported},
		{`{"role_key":` + one + `,"role_key_wire":` + quote(ctoTwo.Wire()) + `}`, wire.RoleKeyMismatch},
		{`{"role_key":{"role_kind":"cto"}}`, wire.ProjectIDInvalid},
		{`{"role_key":{"project_id":7,"role_kind":"cto"}}`, wire.ProjectIDInvalid},
		{`{"role_key":{"project_id":"` + projectOne + `x","role_kind":"cto"}}`, wire.ProjectIDInvalid},
		{`{"role_key":{"project_id":"prj_one000000000000000000.","role_kind":"cto"}}`, wire.ProjectIDInvalid},
		{`{"role_key":{"project_id":"` + projectOne + `"}}`, wire.RoleKindUnsupported},
		{`{"role_key":{"project_id":"` + projectOne + `","role_kind":null}}`, wire.RoleKindUnsupported},
		{`{"role_key":{"project_id":"` + projectOne + `","role_kind":"ceo"}}`, wire.RoleKindUnsupported},
		{`{"role_key":{"project_id":"` + projectOne + `","role_kind":"cto","scope_id":"` + scopeOne + `"}}`, wire.RoleScopeForbidden},
		{`{"role_key":{"project_id":"` + projectOne + `","role_kind":"lead"}}`, wire.ScopeRequired},
		{`{"role_key":{"project_id":"` + projectOne + `","role_kind":"lead","scope_id":""}}`, wire.ScopeIDInvalid},
		{`{"role_key":{"project_id":"` + projectOne + `","role_kind":"lead","scope_id":null}}`, wire.ScopeIDInvalid},
		{`{"role_key":{"project_id":"` + projectOne + `","role_kind":"lead","scope_id":"` + projectOne + `"}}`, wire.ScopeIDInvalid},
		{`{"role_key_wire":"rk1.e30"}`, wire.RoleKeyWirePrefix},
		{`{"role_key_wire":""}`, wire.RoleKeyWirePrefix},
		{`{"role_key_wire":"rk2.=="}`, wire.RoleKeyWireInvalid},
		{`{"role_key_wire":"` + wireOf("no json") + `"}`, wire.RoleKeyWireInvalid},
		{`{"role_key_wire":"` + wireOf("[]") + `"}`, wire.RoleKeyWireInvalid},
		{`{"role_key_wire":"` + wireOf(`{"role_kind":"cto","project_id":"`+projectOne+`"}`) + `"}`, wire.RoleKeyNonCanonical},
		{`{"role_key_wire":"` + wireOf(one+" ") + `"}`, wire.RoleKeyNonCanonical},
		{`{"role_key_wire":"` + wireOf(strings.Replace(one, "cto", "\\u0063to", 1)) + `"}`, wire.RoleKeyNonCanonical},
		{`{"role_key_wire":"rk2.` + strings.Repeat("A", 509) + `"}`, wire.RoleKeyWireTooLong},
	} {
		w := newWorld()
		body := strings.TrimSuffix(c.body, "}") + `,"trigger":"manual","cause_id":"c"}`
		if got := w.refused("zoe", verbEnsure, strings.Replace(body, "{,", "{", 1)); got != c.want {
			t.Errorf("%s: %s, want %s", c.body, got, c.want)
		}
		if c.want != "" && len(w.mem.roles) > 0 {
			t.Errorf("%s made a role", c.body)
		}
	}
}

// A key has one wire form and one name, and both read back as the key.
func TestAKeyHasOneForm(t *testing.T) {
	part := rapid.StringMatching(`[A-Za-z0-9_-]{22}`)
	rapid.Check(t, func(rt *rapid.T) {
		k := Key{ProjectID: "prj_" + part.Draw(rt, "project"), RoleKind: rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`).Draw(rt, "kind")}
		if rapid.Bool().Draw(rt, "scoped") {
			k.ScopeID = "scp_" + part.Draw(rt, "scope")
		}
		if got, refusal := ParseWire(k.Wire()); refusal != nil || got != k {
			rt.Fatalf("%+v reads back from %s as %+v, %v", k, k.Wire(), got, refusal)
		}
		if got, refusal := ParseName(k.Name()); refusal != nil || got != k {
			rt.Fatalf("%+v reads back from %s as %+v, %v", k, k.Name(), got, refusal)
		}
		if len(k.Wire()) > maxWire {
			rt.Fatalf("%s has %d bytes", k.Wire(), len(k.Wire()))
		}
	})
}

// FuzzParseWire: what is read is canonical, what is not is a refusal of its own.
func FuzzParseWire(f *testing.F) {
	f.Add(ctoOne.Wire())
	f.Add(leadOne.Wire())
	f.Add(wireOf(`{"project_id":"x"}`))
	f.Add(wireOf(`{"project_id":{}}`))
	f.Fuzz(func(t *testing.T, s string) {
		k, refusal := ParseWire(s)
		if refusal == nil && k.Wire() != s {
			t.Fatalf("%q is read as %+v, whose form is %q", s, k, k.Wire())
		}
		if refusal != nil && refusal.Code.Status() != 400 {
			t.Fatalf("%q: %v", s, refusal)
		}
	})
}

// Names come from subjects and headers; wrong ones have the same codes.
func TestNamesAreReadStrictly(t *testing.T) {
	for name, want := range map[string]wire.Code{
		projectOne + "/cto": "", projectOne + "/lead/" + scopeOne: "",
		"": wire.RoleKeyInvalid, projectOne: wire.RoleKeyInvalid, projectOne + "/lead/" + scopeOne + "/x": wire.RoleKeyInvalid,
		"p/cto": wire.ProjectIDInvalid, projectOne + "/": wire.RoleKindUnsupported,
		projectOne + "/lead/": wire.ScopeIDInvalid, projectOne + "/lead/s": wire.ScopeIDInvalid,
	} {
		k, refusal := ParseName(name)
		switch {
		case want == "" && (refusal != nil || k.Name() != name):
			t.Errorf("%s: %+v, %v", name, k, refusal)
		case want != "" && (refusal == nil || refusal.Code != want):
			t.Errorf("%s: %v, want %s", name, refusal, want)
		}
	}
}
