package roles

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"signalbox/step"
	"signalbox/wire"
)

// What the machine is asked by others.
func TestHeldAndCount(t *testing.T) {
	w := sqlWorld(t)
	w.candidate("ann", projectOne, "cto", "lead")
	w.must(t, "zoe", verbEnsure, ensureBody(leadOne))
	w.must(t, "zoe", verbEnsure, ensureBody(ctoTwo))
	w.ack(t, ctoOne)
	held, err := w.m.Held(w.db, "ann")
	if err != nil || !slices.Equal(held, []string{ctoOne.Name()}) {
		t.Errorf("ann holds %v, %v: one that is only reserved does not count", held, err)
	}
	count, err := w.m.Count(w.db)
	if want := map[string]int64{"active": 1, "elected-probing": 1, "electable": 1}; err != nil || !reflect.DeepEqual(count, want) {
		t.Errorf("there are %v, %v", count, err)
	}
	for _, table := range w.m.Tables() {
		exec(t, w, `DELETE FROM `+table)
	}
	heard := ""
	for _, n := range []string{"agents.online", "agents.subscribed", "agents.stale", "agents.offline", "agents.x", "bridge.started", "bridge.log_gap",
		"bridge.arrived", "roles.active"} {
		machine, what, _ := strings.Cut(n, ".")
		if w.m.Hears(machine, what) {
			heard += what + " "
		}
	}
	if heard != "online subscribed stale offline started log_gap " {
		t.Errorf("it hears %s", heard)
	}
	if _, err := w.apply("zoe", step.Command{Verb: "dance"}); err == nil {
		t.Error("an unknown verb is done")
	}
	if _, err := w.apply("zoe", step.Notice{Machine: step.Bridge, What: step.Started}); err == nil {
		t.Error("a start without its data is done")
	}
	var refusal *wire.Error
	w.settings = `{"kinds":7}`
	if _, err := w.apply("zoe", step.Command{Verb: verbEnsure}); err == nil || errors.As(err, &refusal) {
		t.Errorf("settings that cannot be read give %v", err)
	}
}

// list shows what is asked for, by wire key, in pages; get and candidates one.
func TestQueries(t *testing.T) {
	w := sqlWorld(t)
	w.candidate("ann", projectOne, "cto", "lead")
	w.candidate("bob", projectOne, "lead")
	w.register("cyd", projectOne, true, nil, capability("lead"))
	for _, k := range []Key{leadOne, leadTwo, ctoTwo} {
		w.must(t, "zoe", verbEnsure, ensureBody(k))
	}
	w.ack(t, ctoOne)
	w.must(t, "op", verbWithdraw, on(leadOne, `,"agent_id":"ann"`))
	w.must(t, "op", verbCloseScope, on(leadTwo, ``))
	w.pending["role:"+leadOne.Name()] = 7
	names := func(body string) (names []string, reply ListReply) {
		reply = query(t, w, "list", body).(ListReply)
		for _, i := range reply.Items {
			names = append(names, i.RoleKey.Name())
		}
		return names, reply
	}
	all, reply := names(`{}`)
	if reply.SchemaVersion != "tfx.roles.v2" || reply.GeneratedAtMS != startMS || len(all) != 4 ||
		!slices.IsSortedFunc(reply.Items, func(a, b Item) int { return strings.Compare(a.RoleKeyWire, b.RoleKeyWire) }) {
		t.Errorf("the list is %+v", reply)
	}
	for body, want := range map[string]int{
		`{"project_id":"` + projectTwo + `"}`: 1, `{"role_kind":"lead"}`: 2, `{"scope_id":"` + scopeTwo + `"}`: 1, `{"states":["active"]}`: 1,
		`{"states":["active","closed"]}`: 2, `{"states":[]}`: 4, `{"role_kind":"none"}`: 0, `{"states":["active"],"role_kind":"lead"}`: 0,
	} {
		if got, _ := names(body); len(got) != want {
			t.Errorf("%s lists %v, want %d", body, got, want)
		}
	}
	var paged []string
	for after := ""; ; {
		got, reply := names(fmt.Sprintf(`{"limit":1,"after":%q}`, after))
		paged = append(paged, got...)
		if after = reply.NextAfter; !reply.More {
			break
		}
	}
	if !slices.Equal(paged, all) {
		t.Errorf("in pages it is %v, at once %v", paged, all)
	}
	for _, body := range []string{`{"limit":0}`, `{"limit":501}`, `{"states":["awake"]}`, `{"project_id":"p"}`, `{"scope_id":"s"}`, `{"x":1}`} {
		if _, err := w.m.Queries()["list"](w.db, "zoe", []byte(body)); codeOf(err).Status() != 400 {
			t.Errorf("list %s: %v", body, err)
		}
	}

	item := query(t, w, "get", on(leadOne, ``)).(Item)
	if item.CandidateCount != 2 || item.LiveCandidateCount != 2 || item.PendingCount != 7 || text(item.HolderAgentID) != "ann" {
		t.Errorf("the role is %+v", item)
	}
	w.seen("ann", -5000) // its lease moves on without the role
	if item = query(t, w, "get", on(leadOne, ``)).(Item); *item.HolderLeaseExpiresAtMS != w.agents["ann"].LeaseExpiresAtMS {
		t.Errorf("the lease of its holder is shown as %d", *item.HolderLeaseExpiresAtMS)
	}
	for _, name := range []string{"get", "candidates"} {
		if _, err := w.m.Queries()[name](w.db, "zoe", []byte(`{}`)); codeOf(err) != wire.RoleKeyInvalid {
			t.Errorf("%s of no role: %v", name, err)
		}
	}
	if _, err := w.m.Queries()["get"](w.db, "zoe", []byte(on(Key{ProjectID: projectTwo, RoleKind: "lead", ScopeID: scopeTwo}, ``))); codeOf(err) != wire.NotFound {
		t.Errorf("a role that nobody asked for: %v", err)
	}
	got := ""
	for _, c := range query(t, w, "candidates", on(leadOne, ``)).(CandidatesReply).Candidates {
		got += c.AgentID + ":" + c.Unfit + " "
	}
	if got != "bob: ann:withdrawn cyd:delivery_live " {
		t.Errorf("the candidates are %s", got)
	}
}
