package bridge

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"signalbox/wire"
)

const (
	ms     = int64(time.Millisecond)
	second = int64(time.Second)
)

func TestBusTimeFollowsTheLog(t *testing.T) {
	for _, c := range []struct {
		name         string
		now, last, t int64
		want         int64
		stepped      bool
	}{
		{"the first message sets it", 0, 0, 5 * second, 5 * second, false},
		{"it follows", 10 * second, 10 * second, 12 * second, 12 * second, false},
		{"it follows a step forward", 10 * second, 10 * second, 4000 * second, 4000 * second, false},
		{"it stands still for equal times", 10 * second, 10 * second, 10 * second, 10 * second, false},
		{"it does not go back", 10 * second, 10 * second, 9 * second, 10 * second, false},
		{"2 s back are not announced", 10 * second, 10 * second, 8 * second, 10 * second, false},
		{"more than 2 s back are", 10 * second, 10 * second, 8*second - 1, 10 * second, true},
		{"ahead of the log it runs at half speed", 3600 * second, 0, 100 * second, 3650 * second, false},
		{"until they meet", 110 * second, 100 * second, 120 * second, 120 * second, false},
		{"and not beyond", 110 * second, 100 * second, 119 * second, 119*second + second/2, false},
		{"a step forward over the meeting is followed", 110 * second, 100 * second, 500 * second, 500 * second, false},
		{"a second step back while ahead", 110 * second, 100 * second, 90 * second, 110 * second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			next, stepped := advance(c.now, c.last, c.t)
			if next != c.want || stepped != c.stepped {
				t.Errorf("advance(%d, %d, %d) = %d, %v; want %d, %v", c.now, c.last, c.t, next, stepped, c.want, c.stepped)
			}
		})
	}
}

func TestBusTimeNeverGoesBackAndMeetsTheLogAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := rapid.Int64Range(1, 1<<60).Draw(t, "start")
		now, _ := advance(0, 0, last)
		for range rapid.IntRange(1, 60).Draw(t, "messages") {
			step := rapid.OneOf(rapid.Int64Range(0, second), rapid.Int64Range(-3600*second, 3600*second)).Draw(t, "step")
			at := max(1, last+step)
			next, stepped := advance(now, last, at)
			if next < now {
				t.Fatalf("bus time went back from %d to %d", now, next)
			}
			if next < at {
				t.Fatalf("bus time %d is behind the log's %d", next, at)
			}
			if now > last && next > at && next-now > max(0, at-last)/2 {
				t.Fatalf("ahead of the log, bus time went %d while the log went %d", next-now, at-last)
			}
			if stepped != (at < last-int64(clockStep)) {
				t.Fatalf("a step of %d is announced: %v", at-last, stepped)
			}
			now, last = next, at
		}
		// From here on the clock is well: after twice what bus time is ahead,
		// they meet, in however many messages that comes.
		ahead := now - last
		for end := last + 2*ahead + second; last < end; {
			at := min(end, last+rapid.Int64Range(ahead/20+1, ahead/2+second).Draw(t, "tick"))
			now, _ = advance(now, last, at)
			last = at
		}
		if now != last {
			t.Fatalf("bus time is still %d ahead after twice that time", now-last)
		}
	})
}

// A timer set to wait must not fire while the deadline is ahead, nor much later
// than it could.
func TestTheTimerMeetsTheDeadline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := rapid.Int64Range(3600*second, 7200*second).Draw(t, "log time")
		now := last + rapid.Int64Range(0, 3600*second).Draw(t, "ahead")
		deadline := now/ms + rapid.Int64Range(1, 7_200_000).Draw(t, "deadline in ms")
		elapsed := time.Duration(rapid.Int64Range(0, 2*second).Draw(t, "elapsed"))
		d := wait(deadline, now, last, elapsed) + elapsed // since the last message
		if then, _ := advance(now, last, last+int64(d)); then/ms < deadline {
			t.Fatalf("the timer fires after %s, when bus time is %d ms before the deadline", d, deadline-then/ms)
		}
		if early, _ := advance(now, last, last+int64(d)-4*ms); early/ms >= deadline {
			t.Fatalf("the timer fires after %s, but the deadline was over 4 ms before", d)
		}
	})
}

func TestADeadlineThatIsOverNeedsNoWait(t *testing.T) {
	if d := wait(1000, 5000*ms, 5000*ms, 0); d > 0 {
		t.Errorf("a deadline that is over waits %s", d)
	}
	if d := wait(1000, 5000*ms, 2000*ms, 0); d > 0 {
		t.Errorf("a deadline that is over waits %s when bus time is ahead", d)
	}
}

func TestRequestsAreRefusedWithTheCodeOfWhatIsRed(t *testing.T) {
	for _, c := range []struct {
		part Part
		code wire.Code
	}{
		{PartDisk, wire.DiskLow}, {PartFrozen, wire.DiskLow}, {PartLag, wire.Lagging}, {PartRegister, wire.NotReady},
	} {
		h := newHealth()
		h.green(PartStart)
		if err := h.admits(); err != nil {
			t.Fatalf("all is green and a request is refused: %v", err)
		}
		h.red(c.part, "the reason")
		refusal, ok := asRefusal(h.admits())
		if !ok || refusal.Code != c.code || !strings.Contains(refusal.Message, "the reason") || refusal.Hint == "" {
			t.Errorf("%s is red: %+v, want %s with the reason and a hint", c.part, refusal, c.code)
		}
		if got := refusal.Code.Status(); got != 503 {
			t.Errorf("%s has the status %d, want 503", c.code, got)
		}
		h.green(c.part)
		if err := h.admits(); err != nil {
			t.Errorf("%s is green again and a request is refused: %v", c.part, err)
		}
	}
}

func TestLagIsRedBeyondItsLimitsOnly(t *testing.T) {
	for _, c := range []struct {
		lag lag
		red bool
	}{
		{lag{}, false}, {lag{messages: 50_000, time: 2 * time.Second}, false},
		{lag{messages: 50_001}, true}, {lag{messages: 1, time: 2*time.Second + 1}, true},
	} {
		h := newHealth()
		h.lag(c.lag)
		if _, red := h.Red()[PartLag]; red != c.red {
			t.Errorf("%+v: red is %v, want %v", c.lag, red, c.red)
		}
		h.lag(lag{})
		if _, red := h.Red()[PartLag]; red {
			t.Errorf("%+v: still red when it is over", c.lag)
		}
	}
}
