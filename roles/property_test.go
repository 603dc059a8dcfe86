package roles

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"signalbox/step"
)

// sequences is how many random sequences the machine is put through.
const sequences = 20_000

// TestMain sets the number of sequences, unless the caller has set one.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", fmt.Sprint(sequences/2)); err != nil {
			panic(err)
		}
	}
	debug.SetGCPercent(400) // small heaps, many sequences
	os.Exit(m.Run())
}

// In every sequence of registrations, lapses, ensures, probes, acks, resigns,
// operators' commands, ticks, restarts and gaps the invariants hold after each
// step; run again from the beginning it comes to the same; and when everything
// is well again every role that is wanted gets a holder.
func TestNoSequenceBreaksAnInvariant(t *testing.T) {
	for i := range 2 { // two at a time
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) {
				ops := drawOperations(rt)
				w := newWorld()
				w.watch = newJudge(func(format string, args ...any) {
					rt.Fatalf(format+"\nafter %+v", append(args, ops)...)
				}).watch
				for i, o := range ops {
					w.do(o)
					if o.kind == "reload" {
						again(rt, w, ops[:i+1])
					}
				}
				settle(rt, w)
			})
		})
	}
}

// again folds the same log from the beginning and compares.
func again(rt *rapid.T, w *world, ops []operation) {
	other := newWorld()
	for _, o := range ops {
		other.do(o)
	}
	if !reflect.DeepEqual(w.mem, other.mem) || !reflect.DeepEqual(w.messages, other.messages) || !reflect.DeepEqual(w.probes, other.probes) {
		rt.Fatalf("folded again it is\n%+v\nnot\n%+v", other.mem, w.mem)
	}
}

// settle makes everything well: elections are on, everybody is registered and
// answers. Then every role that is wanted must get a holder, in bounded time and
// without an operator.
func settle(rt *rapid.T, w *world) {
	w.settings = plainSettings
	if err := w.restart(false); err != nil {
		rt.Fatal(err)
	}
	_, _ = w.command("operator", verbControl, `{"master_enabled":true,"kinds":{"cto":true,"lead":true}}`)
	for _, k := range someRoles {
		if c := w.mem.candidates[k.Name()]["ann"]; c.Withdrawn {
			_, _ = w.command("operator", verbCandidate, on(k, `,"agent_id":"ann"`))
		}
	}
	v := variants[0]
	w.register("ann", v.project, v.live, []string{v.locator}, v.capabilities...)
	const day = 24 * 60 * 60 * 1000
	for end := w.now + 2*day; w.now < end; {
		vacant := 0
		for _, name := range slices.Sorted(maps.Keys(w.mem.roles)) {
			r := w.mem.roles[name]
			if r.State == Closed || r.ProjectID != projectOne {
				continue
			}
			if r.State == Probing && r.ActivatedAtMS == 0 {
				i := slices.IndexFunc(w.probes, func(q step.Request) bool { return q.Context["activation_id"] == r.ActivationID })
				if err := w.probed(w.probes[i], true); err != nil {
					rt.Fatal(err)
				}
				r = w.mem.roles[name]
			}
			if r.State == Probing {
				w.seen(r.HolderAgentID, 0)
				if _, err := w.command(r.HolderAgentID, verbAck, string(marshal(ackOf(activationOf(&r, ""))))); err != nil {
					rt.Fatalf("the ack of %+v: %v", r, err)
				}
				r = w.mem.roles[name]
			}
			if r.State != Active {
				vacant++
			}
		}
		if vacant == 0 {
			return
		}
		at := w.nextDue()
		w.now = max(w.now, min(at, w.now+ttl/2))
		w.seen("ann", 0)
		if err := w.tick(); err != nil {
			rt.Fatal(err)
		}
	}
	rt.Fatalf("nobody was elected in two days: %+v", w.mem.roles)
}

// The tables and the maps of the test are the same store: through both a
// sequence comes to the same rows and effects.
func TestTheTablesHoldWhatTheRulesDecide(t *testing.T) {
	random := rapid.Custom(drawOperations)
	db := openDB(t)
	for seed := range 200 { // through real tables a sequence costs a hundred times as much
		ops := random.Example(seed)
		w, s := newWorld(), tableWorld(db)
		for i, o := range ops {
			w.do(o)
			s.do(o)
			if !reflect.DeepEqual(w.effects, s.effects) {
				t.Fatalf("seed %d, after %+v: %+v with maps and %+v with tables", seed, ops[:i+1], w.effects, s.effects)
			}
			if i%8 == 0 || i == len(ops)-1 {
				sameRows(t, w.mem, s.store)
			}
		}
		due := s.due(1 << 60)
		if !slices.IsSortedFunc(due, func(a, b step.Deadline) int { return cmp.Or(cmp.Compare(a.AtMS, b.AtMS), cmp.Compare(a.Key, b.Key)) }) ||
			len(due) != len(w.due(1<<60)) {
			t.Fatalf("seed %d: due are %v and %v", seed, due, w.due(1<<60))
		}
		if _, err := db.Exec(`DELETE FROM roles; DELETE FROM roles_candidates; DELETE FROM roles_control`); err != nil {
			t.Fatal(err)
		}
	}
}

func sameRows(t *testing.T, m *memory, s store) {
	for name, want := range m.roles {
		if got, err := s.Role(name); err != nil || got == nil || *got != want {
			t.Fatalf("%s is %+v in the table (%v), %+v in the map", name, got, err, want)
		}
		got, damage, err := s.Candidates(name, maxCandidates)
		want, _, _ := m.Candidates(name, maxCandidates)
		if err != nil || len(damage) > 0 || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("the candidates of %s are %+v (%v), not %+v", name, got, err, want)
		}
	}
	control, err := s.Control()
	if err != nil || control.MasterEnabled != m.control.MasterEnabled || control.Generation != m.control.Generation ||
		control.Raised != m.control.Raised || !maps.Equal(control.Kinds, m.control.Kinds) || !maps.Equal(control.Charters, m.control.Charters) {
		t.Fatalf("control is %+v (%v), not %+v", control, err, m.control)
	}
}
