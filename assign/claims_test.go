package assign

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"signalbox/step"
	"signalbox/wire"
)

// J1: eight workers claim one offered job in the same instant, a thousand
// times: in whatever order the log has them, one wins and the others hear who.
func TestEightWorkersClaimAndOneWinsAThousandTimes(t *testing.T) {
	b := &bus{t: t, mem: newMemory(), nowMS: start}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 1000 {
		id := fmt.Sprintf("j%d", round)
		b.must("sup", verbCreate, fmt.Sprintf(`{"job_id":%q,"worker_topic":"work","task":"t"}`, id))
		winner := ""
		for _, n := range random.Perm(8) {
			worker := fmt.Sprintf("w%d", n)
			effects, refusal := b.send(worker, verbClaim, fmt.Sprintf(`{"job_id":%q,"attempt":1}`, id))
			switch {
			case winner == "" && refusal == nil:
				winner = worker
				if reply := object(t, effects.Reply); reply["worker_agent"] != worker || reply["status"] != "running" || reply["task"] != "t" {
					t.Fatalf("the winner %s is answered %v", worker, reply)
				}
			case winner == "" || refusal == nil || refusal.Code != wire.AssignClaimed:
				t.Fatalf("round %d: %s claims after %q: %v", round, worker, winner, refusal)
			case object(t, refusal.Current)["worker_agent"] != winner:
				t.Fatalf("round %d: %s hears of %s, but %s has won", round, worker, refusal.Current, winner)
			}
		}
		for n := range 8 {
			worker := fmt.Sprintf("w%d", n)
			_, refusal := b.send(worker, verbReport, fmt.Sprintf(`{"job_id":%q,"attempt":1,"status":"succeeded"}`, id))
			if (refusal == nil) != (worker == winner) {
				t.Fatalf("round %d: the report of %s: %v, and %s had won", round, worker, refusal, winner)
			}
		}
	}
}

// What a claim answers is all that a worker needs, also when it asks again.
func TestAClaimGivesTheWholeJob(t *testing.T) {
	b := newBus(t)
	payload := text256(100 << 10)
	b.do("sup", verbCreate, `{"job_id":"j","worker_topic":"work","task":{"do":"it"},"payload":`+payload+`}`)
	for range 2 {
		reply := b.do("w", verbClaim, `{"job_id":"j"}`)
		if reply["payload"] != payload[1:len(payload)-1] || fmt.Sprint(reply["task"]) != "map[do:it]" {
			t.Errorf("it gives task %v and a payload of %d bytes", reply["task"], len(fmt.Sprint(reply["payload"])))
		}
	}
}

// What the machine does not hear is a fault, not a refusal.
func TestOtherEventsAreFaults(t *testing.T) {
	b := newBus(t)
	for _, event := range []step.Event{step.Message{}, step.Notice{What: step.Started}, step.Command{Verb: "list"}} {
		_, err := b.apply("x", event)
		var refusal *wire.Error
		if err == nil || errors.As(err, &refusal) {
			t.Errorf("%T: %v", event, err)
		}
	}
}
