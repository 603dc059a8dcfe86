package roles

import (
	"fmt"
	"testing"

	"signalbox/wire"
)

// A damaged row is told where it is met; what is asked of other roles goes on.
func TestADamagedRowHoldsUpNoOther(t *testing.T) {
	w := sqlWorld(t)
	w.candidate("ann", projectOne, "cto", "lead", "probe")
	w.must(t, "zoe", verbEnsure, ensureBody(leadOne))
	w.must(t, "zoe", verbEnsure, ensureBody(leadTwo))
	exec(t, w, `UPDATE roles SET epoch = -1 WHERE scope_id = ?`, scopeOne)
	exec(t, w, `UPDATE roles_candidates SET locators = '{' WHERE 1`)

	w.now += 45_000
	w.seen("ann", 0)
	for _, d := range w.due(w.now) {
		_, err := w.apply(wire.Bridge, d)
		if damaged := asDamage(err) != nil; damaged != (d.Key == leadOne.Name()) {
			t.Errorf("the deadline of %s: %v", d.Key, err)
		}
	}
	if s := w.role(leadTwo).State; s != Unreachable {
		t.Errorf("the role beside is %s", s)
	}
	if _, err := w.command("zoe", verbEnsure, ensureBody(leadOne)); asDamage(err) == nil {
		t.Errorf("the damaged role answers %v", err)
	}
	w.effects = nil
	w.notice("offline", "ann", newly(false))
	reply := query(t, w, "list", `{}`).(ListReply)
	if len(reply.Damaged) != 1 || reply.Damaged[0].Row != leadOne.Name() || len(reply.Items) != 2 {
		t.Errorf("the list is %+v", reply)
	}
	for _, sql := range []string{`state = 'asleep'`, `role_key_wire = 'rk2.x'`, `activation_seq = 99`, `version = -1`, `project_id = 'p'`, `role_kind = 'x'`} {
		w := sqlWorld(t)
		w.candidate("ann", projectOne, "cto")
		exec(t, w, `UPDATE roles SET `+sql)
		if _, err := w.store.Role(ctoOne.Name()); asDamage(err) == nil {
			t.Errorf("a row with %s is read: %v", sql, err)
		}
	}
}

func exec(t *testing.T, w *world, query string, args ...any) {
	t.Helper()
	if _, err := w.db.Exec(query, args...); err != nil {
		t.Fatal(err)
	}
}

func query(t *testing.T, w *world, name, body string) any {
	t.Helper()
	v, err := w.m.Queries()[name](w.db, "zoe", []byte(body))
	if err != nil {
		t.Fatalf("%s %s: %v", name, body, err)
	}
	return v
}

// There are as many roles and candidates as may be, and not one more; what is
// there already goes on.
func TestTheLimits(t *testing.T) {
	w := sqlWorld(t)
	w.must(t, "zoe", verbEnsure, ensureBody(ctoOne))
	exec(t, w, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO roles SELECT 'x' || i, 'prj_x', 'x', '', 'x' || i, 'electable', NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, '', NULL, 0, NULL, '',
		NULL, NULL, NULL, 0, '', 0, NULL FROM n`, maxRoles-1)
	if got := w.refused("zoe", verbEnsure, ensureBody(ctoTwo)); got != wire.RoleLimit {
		t.Errorf("one role too many gets %q", got)
	}
	if _, err := w.sent("zoe", w.messageTo(ctoTwo)); codeOf(err) != wire.RoleLimit {
		t.Errorf("a message to it gets %v", err)
	}
	w.candidate("bob", projectTwo, "cto") // registers all the same
	if w.must(t, "zoe", verbEnsure, ensureBody(ctoOne)).Reply.(EnsureReply).Disposition != Joined {
		t.Error("a role that is there is not joined")
	}
	exec(t, w, `DELETE FROM roles WHERE name = 'x1'`)
	w.must(t, "zoe", verbEnsure, ensureBody(ctoTwo))

	const candidates = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO roles_candidates SELECT ?, 'a' || i, 'operator', 0, '[]', 0, NULL, '', NULL, '', 0, 0, 0 FROM n`
	exec(t, w, candidates, maxCandidates, ctoOne.Name())
	if got := w.refused("bob", verbCandidate, on(ctoOne, ``)); got != wire.RoleLimit {
		t.Errorf("one candidate too many gets %q", got)
	}
	if got := w.refused("bob", verbWithdraw, on(ctoOne, ``)); got != wire.RoleLimit {
		t.Errorf("one withdrawal too many gets %q", got)
	}
	exec(t, w, `INSERT INTO roles_candidates SELECT 'r' || agent_id, 'bob', source, 0, '[]', 0, NULL, '', NULL, '', 0, 0, 0 FROM roles_candidates`)
	if got := w.refused("bob", verbCandidate, on(ctoTwo, ``)); got != wire.RoleLimit {
		t.Errorf("one candidacy too many gets %q", got)
	}
}

// A candidate whose row is not among those that are read at once is still
// excluded by it.
func TestACandidateBeyondTheFirstThousandIsStillExcluded(t *testing.T) {
	w := sqlWorld(t)
	exec(t, w, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO roles_candidates SELECT ?, 'a' || i, 'operator', 1, '[]', 0, NULL, '', NULL, '', 0, 0, 0 FROM n`, maxCandidates, ctoOne.Name())
	w.candidate("zed", projectOne, "cto", "probe")
	if err := w.probed(w.probes[0], false); err != nil {
		t.Fatal(err)
	}
	if r := w.role(ctoOne); r.State != Unreachable || r.Epoch != 1 {
		t.Errorf("the only fit candidate has failed and the role is %+v", r)
	}
}

// More roles than are read at once are all recovered after a restart, fenced
// after a gap, and released when elections are switched off.
func TestEveryRoleIsReached(t *testing.T) {
	w := sqlWorld(t)
	const n = 2*pageSize + 3
	w.candidate("ann", projectOne, "lead")
	for i := range n {
		w.must(t, "zoe", verbEnsure, ensureBody(Key{ProjectID: projectOne, RoleKind: "lead", ScopeID: fmt.Sprintf("scp_%022d", i)}))
	}
	count := func(state State) int64 {
		c, err := w.m.Count(w.db)
		if err != nil {
			t.Fatal(err)
		}
		return c[string(state)]
	}
	if err := w.restart(true); err != nil || len(w.messages) != 2*n {
		t.Fatalf("%d activations were sent, %v", len(w.messages), err)
	}
	if err := w.gap(1); err != nil || len(w.messages) != 3*n {
		t.Fatalf("%d activations were sent, %v", len(w.messages), err)
	}
	w.must(t, "op", verbCharter, `{"role_kind":"lead","charter_version":"v2"}`)
	if len(w.messages) != 4*n {
		t.Fatalf("%d activations were sent", len(w.messages))
	}
	w.must(t, "op", verbControl, `{"kinds":{"lead":false}}`)
	if got := count(Electable); got != n {
		t.Fatalf("%d roles are released", got)
	}
	w.must(t, "op", verbControl, `{"kinds":{"lead":true}}`)
	if got := count(Probing); got != n {
		t.Fatalf("%d elections began", got)
	}
	w.deregister("ann")
	if got := count(Electable); got != n {
		t.Fatalf("%d roles were lost with their holder", got)
	}
	w.candidate("ann", projectOne, "lead")
	if got := count(Probing); got != n {
		t.Fatalf("%d elections began with the candidate", got)
	}
	w.must(t, "zoe", verbEnsure, ensureBody(ctoOne))
	w.now += 45_000
	due, err := w.m.Due(w.db, w.now, 7)
	if err != nil || len(due) != 7 || due[0].AtMS > due[6].AtMS || due[0].Key > due[1].Key {
		t.Fatalf("due are %v, %v", due, err)
	}
}

// A damaged candidacy is told, and the others are elected.
func TestADamagedCandidacyIsPassedOver(t *testing.T) {
	w := sqlWorld(t)
	w.candidate("ann", projectOne, "lead")
	w.must(t, "op", verbCandidate, on(leadOne, `,"agent_id":"ann","priority":3,"locators":["nats:1"]`))
	w.candidate("bob", projectOne, "lead")
	w.deregister("ann")
	exec(t, w, `UPDATE roles_candidates SET locators = '{'`)
	e := w.must(t, "zoe", verbEnsure, ensureBody(leadOne))
	if len(e.Events) != 1 || e.Events[0].What != "damaged" || e.Events[0].Body.(map[string]any)["table"] != candidatesTable {
		t.Errorf("the events are %+v", e.Events)
	}
	if r := w.role(leadOne); r.HolderAgentID != "bob" {
		t.Errorf("reserved is %+v", r)
	}
	w.must(t, "op", verbCandidate, on(leadOne, `,"agent_id":"ann","priority":3,"locators":["nats:1"]`))
	c, err := w.store.Candidate(leadOne.Name(), "ann")
	if err != nil || c == nil || c.Priority != 3 || c.Locators[0] != "nats:1" {
		t.Errorf("the next write leaves %+v, %v", c, err)
	}
}
