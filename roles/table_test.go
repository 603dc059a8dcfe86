package roles

import (
	"encoding/csv"
	"os"
	"testing"

	"signalbox/wire"
)

var allStates = []State{Electable, Probing, Active, Unreachable, Quarantined, Closed}

// The table in the code is the table of the design, line by line.
func TestTheTableIsTheDocumentedOne(t *testing.T) {
	f, err := os.Open("testdata/roles-transitions.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	lines = lines[1:]
	if len(lines) != len(Transitions) {
		t.Errorf("the design has %d transitions, the code %d", len(lines), len(Transitions))
	}
	for i, l := range lines[:min(len(lines), len(Transitions))] {
		want := Transition{State(l[0]), Trigger(l[1]), State(l[2]), Action(l[3])}
		if Transitions[i] != want {
			t.Errorf("line %d is %v, the design has %v", i+1, Transitions[i], want)
		}
	}
}

// For every state and trigger: a line of the table happens as it says, anything
// else is refused and changes nothing.
func TestWhatIsNotInTheTableDoesNotHappen(t *testing.T) {
	triggers := map[Trigger]bool{"unheard_of": true}
	for _, line := range Transitions {
		triggers[line.Trigger] = true
	}
	for _, from := range allStates {
		for trigger := range triggers {
			r := Role{Key: ctoOne, State: from, HolderAgentID: "ann", Epoch: 7, ActivationSeq: 7, Version: 3, ActivationID: "a"}
			next, refusal := Step(r, trigger, Change{NowMS: 5, Holder: "bob", ActivationID: "b", Raise: 100})
			line, ok := documented(from, trigger)
			switch {
			case !ok:
				if refusal == nil || refusal.Code != wire.InvalidRoleTransition || next != r {
					t.Errorf("%s by %s gives %+v, %v", from, trigger, next, refusal)
				}
			case refusal != nil:
				t.Errorf("%s by %s is refused: %v", from, trigger, refusal)
			case trigger == StaleAck:
				if next != r {
					t.Errorf("%s by %s changes the role to %+v", from, trigger, next)
				}
			case next.State != line.To || next.Version != 4 || next.LastReason != trigger || next.LastTransitionAtMS != 5:
				t.Errorf("%s by %s gives %+v, want %s", from, trigger, next, line.To)
			case next.Epoch != next.ActivationSeq || next.Epoch != 7+raises[line.Action]:
				t.Errorf("%s by %s takes the epoch to %d, seq %d", from, trigger, next.Epoch, next.ActivationSeq)
			}
		}
	}
}

// raises are the actions that raise the epoch, written down a second time.
var raises = map[Action]int64{
	"reserve_holder": 1, "reserve_standup": 1, "reserve_reack": 1, "reserve_retry_epoch": 1, "reserve_reprobe": 1,
	"revoke_holder_epoch_fence": 1, "revoke_holder_preserve_backlog": 1,
	"fence_active_authority": 1, "fence_activation": 1, "fence_and_release": 1, "fence_and_close": 1, "fence_after_gap": 100,
}

func documented(from State, trigger Trigger) (Transition, bool) {
	for _, line := range Transitions {
		if line.Trigger == trigger && (line.From == from || line.From == "*" && from != Closed) {
			return line, true
		}
	}
	return Transition{}, false
}

// Whoever held the role does not any more after an action that takes it, and
// is remembered; who is reserved by one that gives it is the holder.
func TestActionsGiveAndTakeTheRole(t *testing.T) {
	for _, line := range Transitions {
		from := line.From
		if from == "*" {
			from = Active
		}
		r := Role{Key: ctoOne, State: from, HolderAgentID: "ann", ActivationID: "a", ActivationDeadlineMS: 9, HolderLeaseExpiresAtMS: 9, CharterAckedEpoch: 1}
		next, refusal := Step(r, line.Trigger, Change{Holder: "bob", ActivationID: "b", DeadlineMS: 99, LeaseMS: 88, Charter: "v"})
		if refusal != nil {
			t.Fatal(refusal)
		}
		switch line.To {
		case Probing:
			if line.Action != SendActivation && (next.HolderAgentID != "bob" || next.ActivationID != "b" || next.ActivationDeadlineMS != 99 ||
				next.HolderLeaseExpiresAtMS != 88 || next.CharterVersion != "v" || next.PreviousHolderAgentID != "ann" || next.CharterAckedEpoch != 0) {
				t.Errorf("%v gives %+v", line, next)
			}
		case Active:
			if next.CharterAckedEpoch != next.Epoch || next.ActivationDeadlineMS != 0 || next.HolderAgentID != "ann" {
				t.Errorf("%v gives %+v", line, next)
			}
		case Electable, Unreachable, Closed:
			if from != Probing && from != Active {
				continue
			}
			if next.HolderAgentID != "" || next.ActivationID != "" || next.ActivationDeadlineMS != 0 || next.PreviousHolderAgentID != "ann" {
				t.Errorf("%v leaves %+v", line, next)
			}
		}
	}
}
