package roles

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"signalbox/step"
	"signalbox/wire"
)

// judge watches what the machine does and knows by itself what it must never
// do. It keeps a history that the machine does not have.
type judge struct {
	fail func(format string, args ...any)

	active   map[string]string // who has been active, by role and epoch
	reserved map[string]string // the last activation id that was reserved, by role
	gone     map[string]bool   // activation ids that were taken back
	settings map[string]*Settings
}

func newJudge(fail func(format string, args ...any)) *judge {
	return &judge{fail: fail, active: map[string]string{}, reserved: map[string]string{}, gone: map[string]bool{}, settings: map[string]*Settings{}}
}

// watch checks one call of the machine.
func (j *judge) watch(w *world, before *memory, in step.Input, e step.Effects, err error) {
	if err != nil {
		j.refused(w, before, in, e, err)
		return
	}
	moves := map[string][]step.Transition{}
	for _, t := range e.Transitions {
		moves[t.Key] = append(moves[t.Key], t)
	}
	for name, now := range w.mem.roles {
		was, existed := before.roles[name]
		j.role(w, before, was, existed, now, moves[now.Subject()])
		delete(moves, now.Subject())
	}
	if len(moves) > 0 {
		j.fail("transitions of roles that there are not: %v", moves)
	}
	if command, ok := in.Event.(step.Command); ok && command.Verb == verbFenceCheck {
		j.fence(w, in, command, e)
	}
	if m, ok := in.Event.(step.Message); ok && m.Envelope.Role != "" {
		r := j.named(w, m.Envelope.Role)
		if r.State != Active || fmt.Sprint(r.Epoch) != m.Envelope.RoleEpoch || r.HolderAgentID != m.From {
			j.fail("%s acts for %s at %s, which is %+v", m.From, m.Envelope.Role, m.Envelope.RoleEpoch, r)
		}
	}
}

func (j *judge) named(w *world, name string) Role { return w.mem.roles[name] }

// refused: nothing has changed, and who acted with an old epoch is told.
func (j *judge) refused(w *world, before *memory, in step.Input, e step.Effects, err error) {
	code := codeOf(err)
	if code.Status() == 500 {
		j.fail("%+v: %v", in.Event, err)
	}
	if !reflect.DeepEqual(before, w.mem) {
		j.fail("%s changed something: %+v", code, in.Event)
	}
	if len(e.Transitions)+len(e.Events)+len(e.Messages)+len(e.Requests)+len(e.Notices) > 0 {
		j.fail("%s has effects: %+v", code, e)
	}
	told := len(e.Told) == 1 && e.Told[0].Key == in.From && e.Told[0].What == "fenced"
	command, _ := in.Event.(step.Command)
	acts := command.Verb == verbAck || command.Verb == verbResign || command.Verb == ""
	if fenced := code == wire.StaleEpoch || code == wire.HolderMismatch; fenced && acts && !told {
		j.fail("%s of %+v is not told to %s: %+v", code, in.Event, in.From, e.Told)
	}
	if command.Verb == verbAck {
		j.ack(w, in, command, code)
	}
}

// ack: the refusal of an ack is the first in the order of the design.
func (j *judge) ack(w *world, in step.Input, c step.Command, got wire.Code) {
	var a struct {
		RoleKey       Key    `json:"role_key"`
		Epoch         int64  `json:"epoch"`
		Seq           int64  `json:"activation_seq"`
		ID            string `json:"activation_id"`
		HolderAgentID string `json:"holder_agent_id"`
		Charter       struct {
			RoleKey Key    `json:"role_key"`
			Epoch   int64  `json:"epoch"`
			Version string `json:"charter_version"`
		} `json:"charter_ack"`
	}
	if err := json.Unmarshal(c.Body, &a); err != nil {
		j.fail("%v", err)
	}
	r := j.named(w, a.RoleKey.Name())
	want := wire.Code("")
	switch {
	case r.State != Probing && r.State != Active, !j.on(w, a.RoleKey),
		a.Epoch != r.Epoch, a.Seq != r.ActivationSeq, a.ID != r.ActivationID, a.Charter.RoleKey != r.Key, a.Charter.Epoch != r.Epoch:
		want = wire.StaleEpoch
	case in.From != r.HolderAgentID || a.HolderAgentID != r.HolderAgentID:
		want = wire.HolderMismatch
	case a.Charter.Version != r.CharterVersion:
		want = wire.CharterVersionMismatch
	case w.agents[in.From].LeaseExpiresAtMS <= w.now:
		want = wire.HolderLeaseExpired
	}
	if got != want {
		j.fail("an ack gets %q, it should get %q: %s of %s for %+v", got, want, c.Body, in.From, r)
	}
}

// on reports whether elections for the role are on, read from the store.
func (j *judge) on(w *world, k Key) bool {
	kind := `"` + k.RoleKind + `","scoped":` + fmt.Sprint(k.ScopeID != "")
	off, set := w.mem.control.Kinds[k.RoleKind]
	return strings.Contains(w.settings, kind) && w.mem.control.MasterEnabled && (!set || off)
}

func (j *judge) fence(w *world, in step.Input, c step.Command, e step.Effects) {
	var q struct {
		RoleKey Key   `json:"role_key"`
		Epoch   int64 `json:"epoch"`
	}
	if err := json.Unmarshal(c.Body, &q); err != nil {
		j.fail("%v", err)
	}
	r := j.named(w, q.RoleKey.Name())
	if want := r.State == Active && r.Epoch == q.Epoch && r.HolderAgentID == in.From; e.Reply.(FenceReply).Valid != want {
		j.fail("fence_check says %+v of %+v to %s", e.Reply, r, in.From)
	}
}

// role checks what became of a role in a call.
func (j *judge) role(w *world, before *memory, was Role, existed bool, now Role, moves []step.Transition) {
	name := now.Name()
	if !existed {
		if len(moves) == 0 || moves[0].From != "" || moves[0].Body.(*Snapshot).Version != 0 || moves[0].Body.(*Snapshot).Epoch != before.control.Raised {
			j.fail("%s began with %+v", name, moves)
			return
		}
		was = Role{Key: now.Key, State: Electable, Epoch: before.control.Raised, ActivationSeq: before.control.Raised}
		moves = moves[1:]
	}
	at := was
	for _, m := range moves {
		s := m.Body.(*Snapshot)
		line, legal := find(at.State, Trigger(m.Reason))
		if !legal || string(line.To) != m.To || m.From != string(at.State) || s.State != line.To {
			j.fail("%s: %s → %s by %s is not in the table (it was %s)", name, m.From, m.To, m.Reason, at.State)
		}
		if s.Version != at.Version+1 {
			j.fail("%s: version %d follows %d", name, s.Version, at.Version)
		}
		j.epoch(w, before, name, at, line, s)
		j.activation(w, name, &at, s)
		if line.Action == ReserveHolder || line.Action == ReserveRetry {
			j.best(w, before, now.Key, *s.HolderAgentID, m.Reason)
		}
		at.State, at.Version, at.Epoch, at.ActivationSeq = s.State, s.Version, s.Epoch, s.ActivationSeq
		at.ActivationID, at.HolderAgentID = text(s.ActivationID), text(s.HolderAgentID)
	}
	if now.State != at.State || now.Version != at.Version || now.Epoch != at.Epoch || now.HolderAgentID != at.HolderAgentID || now.ActivationID != at.ActivationID {
		j.fail("%s is %+v, its transitions end at %+v", name, now, at)
	}
	if was.State == Closed && now != was {
		j.fail("%s was closed: %+v became %+v", name, was, now)
	}
	j.row(w, &now)
}

// epoch: epoch and activation_seq rise together, by one exactly on actions that
// reserve, revoke or fence, and never fall.
func (j *judge) epoch(w *world, before *memory, name string, at Role, line Transition, s *Snapshot) {
	want := at.Epoch
	for _, prefix := range []string{"reserve_", "revoke_", "fence_"} {
		if strings.HasPrefix(string(line.Action), prefix) {
			want = at.Epoch + 1
		}
	}
	if line.Action == FenceAfterGap {
		want = at.Epoch + w.mem.control.Raised - before.control.Raised
	}
	if s.Epoch != want || s.ActivationSeq != want {
		j.fail("%s: %s takes epoch %d to %d, seq %d", name, line.Action, at.Epoch, s.Epoch, s.ActivationSeq)
	}
}

// activation: only the activation that was reserved last becomes active, and at
// most one agent an epoch.
func (j *judge) activation(w *world, name string, at *Role, s *Snapshot) {
	id := text(s.ActivationID)
	if at.ActivationID != "" && id != at.ActivationID {
		j.gone[at.ActivationID] = true
	}
	if s.State == Probing && id != at.ActivationID {
		if j.gone[id] || id == "" {
			j.fail("%s: activation %q is not new", name, id)
		}
		j.reserved[name] = id
	}
	if s.State != Active || at.State == Active {
		return
	}
	if id != j.reserved[name] || j.gone[id] {
		j.fail("%s: activation %s became active, %s was reserved last", name, id, j.reserved[name])
	}
	key := fmt.Sprintf("%s %d", name, s.Epoch)
	if other, ok := j.active[key]; ok && other != text(s.HolderAgentID) {
		j.fail("%s: both %s and %s were active", key, other, text(s.HolderAgentID))
	}
	j.active[key] = text(s.HolderAgentID)
}

// row checks what is true of a role at rest.
func (j *judge) row(w *world, r *Role) {
	held := r.State == Probing || r.State == Active
	on := j.on(w, r.Key)
	holder := w.agents[r.HolderAgentID]
	switch {
	case held != (r.HolderAgentID != "") || held != (r.ActivationID != ""):
		j.fail("a role is held by half: %+v", r)
	case r.State == Active && (r.CharterAckedEpoch != r.Epoch || r.ActivationDeadlineMS != 0):
		j.fail("active without an ack: %+v", r)
	case r.State == Probing && (r.ActivationDeadlineMS == 0 || r.CharterAckedEpoch != 0):
		j.fail("probing without an end: %+v", r)
	case (r.State == Unreachable || r.State == Quarantined) && r.NextProbeAtMS == 0:
		j.fail("nobody will look at it again: %+v", r)
	case held && (holder == nil || holder.status != "online"):
		j.fail("held by %q, who is not there: %+v", r.HolderAgentID, r)
	case held && !on:
		j.fail("held while elections are off: %+v", r)
	case held && r.CharterVersion != j.charterOf(w, r.RoleKind):
		j.fail("held with another charter than %q: %+v", j.charterOf(w, r.RoleKind), r)
	case r.dueAtMS() != 0 && r.State == Closed:
		j.fail("closed and due: %+v", r)
	}
	if r.State != Electable || !on || r.NextProbeAtMS != 0 {
		return
	}
	for id := range w.agents {
		if j.may(w, w.mem, r.Key, id) {
			j.fail("%s may be elected to %+v and no election began", id, r)
		}
	}
}

// charterOf is the charter that holds for a kind: the configured one, or one
// that was issued since.
func (j *judge) charterOf(w *world, kind string) string {
	s, read := j.settings[w.settings]
	if !read {
		s = &Settings{}
		if err := json.Unmarshal([]byte(w.settings), s); err != nil {
			panic(err)
		}
		j.settings[w.settings] = s
	}
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return k.Name == kind })
	if i < 0 {
		return ""
	}
	if issued, ok := w.mem.control.Charters[kind]; ok && issued.Configured == s.Kinds[i].CharterVersion {
		return issued.Version
	}
	return s.Kinds[i].CharterVersion
}

// may says by itself whether an agent may be elected to a role now.
func (j *judge) may(w *world, m *memory, k Key, id string) bool {
	a := w.agents[id]
	c, row := m.candidates[k.Name()][id]
	locators := a.Locators
	if row {
		locators = c.Locators
	}
	return a.status == "online" && a.LeaseExpiresAtMS > w.now && !a.Live && a.ProjectID == k.ProjectID &&
		slices.Contains(a.Capabilities, "role:"+k.RoleKind+":candidate") &&
		slices.ContainsFunc(locators, func(l string) bool { return l == "nats" || strings.HasPrefix(l, "nats:") }) &&
		(!row || !c.Withdrawn && c.ExcludedUntilMS <= w.now)
}

// best: who is reserved may be elected, and nobody better may. A takeover names
// its agent.
func (j *judge) best(w *world, before *memory, k Key, id, reason string) {
	// What the step itself excluded or readmitted is in the store by now.
	if !j.may(w, w.mem, k, id) {
		j.fail("%s was reserved for %s and may not be elected (%s)", id, k.Name(), reason)
	}
	if w.takeover {
		return
	}
	rank := func(id string) (priority, updated int64) {
		if c, ok := w.mem.candidates[k.Name()][id]; ok {
			return c.Priority, c.UpdatedAtMS
		}
		return 0, w.agents[id].UpdatedAtMS
	}
	p, u := rank(id)
	for other := range w.agents {
		q, v := rank(other)
		if other != id && j.may(w, w.mem, k, other) && (q > p || q == p && (v > u || v == u && other < id)) {
			j.fail("%s was reserved for %s (%s), %s comes first", id, k.Name(), reason, other)
		}
	}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
