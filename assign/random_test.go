package assign

import (
	"flag"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// How many histories a plain run of the tests tells: most of them in memory,
// where the rules and all but the SQL are the same.
const (
	memoryHistories = 20_000
	tableHistories  = 300
	steps           = 20 // of a history, on average
)

// check tells so many histories, unless the command line says how many.
func check(t *testing.T, histories int, property func(*rapid.T)) {
	t.Helper()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]int{"rapid.checks": histories, "rapid.steps": steps} {
		f := flag.Lookup(name)
		if given[name] {
			continue
		}
		before := f.Value.String()
		if err := f.Value.Set(strconv.Itoa(value)); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := f.Value.Set(before); err != nil {
				t.Error(err)
			}
		}()
	}
	rapid.Check(t, property)
}

// save commits what has been.
func (w *world) save(t *rapid.T) {
	w.exec(t, `RELEASE history`, w.savedModel != nil)
	w.exec(t, `SAVEPOINT history`, true)
	w.savedModel, w.savedEyes = w.model.clone(), w.eyes.clone()
}

// crash undoes what was not committed: the tables go back, and the machine
// must go on from them.
func (w *world) crash(t *rapid.T) {
	w.exec(t, `ROLLBACK TO history`, true)
	w.bus.m.Forget()
	w.model, w.eyes = w.savedModel.clone(), w.savedEyes.clone()
}

func (w *world) exec(t *rapid.T, text string, really bool) {
	if !really {
		return
	}
	if _, err := w.bus.db.DB.Exec(text); err != nil {
		t.Fatal(err)
	}
}

// history tells one history.
func history(t *rapid.T, b *bus, moves map[string]bool) *world {
	w := &world{bus: b, model: newModel(), eyes: newWitness(), forced: map[string]bool{}}
	w.eyes.moves = moves
	actions := map[string]func(*rapid.T){
		"create": w.create, "create again": w.createAgain, "claim": w.claim, "claim too": w.claim, "report": w.report, "report too": w.report,
		"report three": w.report, "report again": w.reportAgain, "heartbeat": w.heartbeat, "retry": w.retry, "cancel": w.cancel,
		"tick": w.tick, "tick too": w.tick, "stale": w.stale, "restart": w.restart, "": w.check,
	}
	if b.db != nil {
		w.save(t)
		actions["save"], actions["crash"] = w.save, w.crash
	}
	t.Repeat(actions)
	return w
}

// J1 to J5, J8, J10, J11, J13 in every order, against the model: what a command
// answers, what is announced, what the job is afterwards. 20,000 histories. All
// changes that the package's doc has happen in them, and no other.
func TestAnyHistoryOfJobsComesOutAsTheModelSays(t *testing.T) {
	moves := map[string]bool{}
	check(t, memoryHistories, func(rt *rapid.T) {
		history(rt, &bus{t: t, mem: newMemory(), nowMS: start}, moves)
	})
	if got, want := slices.Sorted(maps.Keys(moves)), documented(t); !slices.Equal(got, want) {
		t.Errorf("the changes were\n\t%s\nbut the doc has\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// The same through the tables. A crash at any point undoes what was not
// committed; what it leaves is what the machine goes on from.
func TestAnyHistoryComesOutOfTheTablesAsTheModelSays(t *testing.T) {
	db := newDatabase(t)
	check(t, tableHistories, func(rt *rapid.T) {
		defer func() {
			_, _ = db.DB.Exec(`ROLLBACK`) // of a history that failed; there is nothing to undo otherwise
		}()
		for _, table := range New().Tables() {
			if _, err := db.DB.Exec(`DELETE FROM ` + table); err != nil {
				rt.Fatal(err)
			}
		}
		w := history(rt, &bus{t: t, db: db, m: New(), nowMS: start}, map[string]bool{})
		w.exec(rt, `RELEASE history`, true)
		w.attempts(rt)
	})
}

// attempts compares the attempts with the model's.
func (w *world) attempts(t *rapid.T) {
	for id, m := range w.model.jobs {
		list, err := w.bus.m.Attempts(w.bus.db, id)
		if err != nil || int64(len(list)) != m.attempt {
			t.Fatalf("%s has %d attempts, %v, want %d", id, len(list), err, m.attempt)
		}
		for i, a := range list {
			o, ended := m.outcomes[a.Attempt]
			if a.Attempt != int64(i)+1 || a.Outcome != o.status || string(a.Result) != o.result || ended && a.WorkerAgent != o.worker {
				t.Fatalf("attempt %d of %s is %+v, want %+v", a.Attempt, id, a, o)
			}
		}
	}
}
