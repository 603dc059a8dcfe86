package bridge

import (
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"signalbox/audit"
)

// story is what stands at each number: which telling of the log wrote it.
type story map[uint64]string

// evidenceOf compares two stories as a check does.
func evidenceOf(streamID string, first, last uint64, stream, register story) evidence {
	return evidence{streamID: streamID, first: first, last: last, ours: true, same: func(seq uint64) (uint64, bool, error) {
		for ; seq > 0; seq-- {
			a, inStream := stream[seq]
			b, inRegister := register[seq]
			if inStream && inRegister {
				return seq, a == b, nil
			}
		}
		return 0, false, nil
	}}
}

// told is a story that one telling wrote at the numbers from low to high.
func told(by string, low, high uint64) story {
	s := story{}
	for seq := low; seq <= high; seq++ {
		s[seq] = by
	}
	return s
}

func TestTheCheckTellsWhatBecameOfALog(t *testing.T) {
	cursor := audit.Cursor{Stream: "BUS", Incarnation: 4, StreamID: "id", FirstSeq: 1, Seq: 10}
	const next = 9
	opens := func(id string, first uint64, reason string) *audit.Incarnation {
		return &audit.Incarnation{ID: next, Stream: "BUS", StreamID: id, FirstSeq: first, Reason: reason}
	}
	gap := func(incarnation int64, from, to uint64, reason string) []audit.Gap {
		return []audit.Gap{{Stream: "BUS", Incarnation: incarnation, From: from, To: to, Reason: reason}}
	}
	for _, c := range []struct {
		name        string
		new         bool // the register does not know the log
		id          string
		first, last uint64
		stream      story
		want        verdict
	}{
		{name: "a new log is read from its beginning", new: true, id: "id", first: 1, last: 0,
			want: verdict{incarnation: next, from: 1, opens: opens("id", 1, audit.Created)}},
		{name: "a new log without a first number is read from 1", new: true, id: "id",
			want: verdict{incarnation: next, from: 1, opens: opens("id", 1, audit.Created)}},
		{name: "a new log that has lost its beginning has a gap", new: true, id: "id", first: 5, last: 9,
			want: verdict{incarnation: next, from: 5, opens: opens("id", 5, audit.Created), gaps: gap(next, 1, 4, audit.Overtaken)}},
		{name: "the same log goes on", id: "id", first: 1, last: 12, stream: told("old", 1, 12),
			want: verdict{incarnation: 4, from: 11}},
		{name: "the same log without news goes on", id: "id", first: 1, last: 10, stream: told("old", 1, 10),
			want: verdict{incarnation: 4, from: 11}},
		{name: "the same log whose beginning was dropped goes on", id: "id", first: 10, last: 12, stream: told("old", 10, 12),
			want: verdict{incarnation: 4, from: 11}},
		{name: "the head is just past the cursor", id: "id", first: 11, last: 15, stream: told("old", 11, 15),
			want: verdict{incarnation: 4, from: 11}},
		{name: "the head is past the cursor", id: "id", first: 14, last: 15, stream: told("old", 14, 15),
			want: verdict{incarnation: 4, from: 14, gaps: gap(4, 11, 13, audit.Overtaken)}},
		{name: "everything after the cursor has expired", id: "id", first: 16, last: 15,
			want: verdict{incarnation: 4, from: 16, gaps: gap(4, 11, 15, audit.Overtaken)}},
		{name: "everything up to the cursor has expired", id: "id", first: 11, last: 10,
			want: verdict{incarnation: 4, from: 11}},
		{name: "another stream id", id: "other", first: 1, last: 20, stream: told("old", 1, 20),
			want: verdict{incarnation: next, from: 1, opens: opens("other", 1, audit.StreamChanged), gaps: gap(4, 11, 0, audit.StreamChanged)}},
		{name: "another stream id whose head is past", id: "other", first: 7, last: 20,
			want: verdict{incarnation: next, from: 7, opens: opens("other", 7, audit.StreamChanged), gaps: gap(4, 11, 0, audit.StreamChanged)}},
		{name: "the log ends before the cursor", id: "id", first: 1, last: 6, stream: told("old", 1, 6),
			want: verdict{incarnation: next, from: 7, opens: opens("id", 7, audit.LogWentBack), gaps: gap(4, 11, 0, audit.LogWentBack)}},
		{name: "the log ends before the cursor and has lost its beginning", id: "id", first: 4, last: 6, stream: told("old", 4, 6),
			want: verdict{incarnation: next, from: 7, opens: opens("id", 7, audit.LogWentBack), gaps: gap(4, 11, 0, audit.LogWentBack)}},
		{name: "the log is empty and ends before the cursor", id: "id", first: 6, last: 5,
			want: verdict{incarnation: next, from: 6, opens: opens("id", 6, audit.LogWentBack), gaps: gap(4, 11, 0, audit.LogWentBack)}},
		{name: "the log was purged to nothing", id: "id", first: 0, last: 0,
			want: verdict{incarnation: next, from: 1, opens: opens("id", 1, audit.LogWentBack), gaps: gap(4, 11, 0, audit.LogWentBack)}},
		{name: "the numbers are reused from the first on", id: "id", first: 1, last: 12, stream: told("new", 1, 12),
			want: verdict{incarnation: next, from: 1, opens: opens("id", 1, audit.LogWentBack), gaps: gap(4, 11, 0, audit.LogWentBack)}},
		{name: "only the last number is reused", id: "id", first: 1, last: 10,
			stream: merge(told("old", 1, 9), told("new", 10, 10)),
			want:   verdict{incarnation: next, from: 10, opens: opens("id", 10, audit.LogWentBack), gaps: gap(4, 11, 0, audit.LogWentBack)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := evidenceOf(c.id, c.first, c.last, c.stream, told("old", 1, 10))
			got, err := check(cursor, !c.new, "BUS", e, func() int64 { return next })
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("the verdict is %+v, opens %+v\nwant %+v, opens %+v", got, got.opens, c.want, c.want.opens)
			}
		})
	}
}

func merge(stories ...story) story {
	all := story{}
	for _, s := range stories {
		for seq, by := range s {
			all[seq] = by
		}
	}
	return all
}

func TestATapThatIsNewHasNoGapBeforeItsFirstMessage(t *testing.T) {
	e := evidenceOf("", 5, 9, nil, nil)
	e.ours = false
	v, err := check(audit.Cursor{}, false, "ORDERS", e, func() int64 { return 2 })
	if err != nil || v.from != 5 || len(v.gaps) != 0 {
		t.Errorf("the verdict on another's stream is %+v, %v; what it had before the tap is no gap", v, err)
	}
}

func TestACheckThatCannotCompareSaysSo(t *testing.T) {
	broken := errors.New("the server does not answer")
	cursor := audit.Cursor{Stream: "BUS", Incarnation: 1, StreamID: "id", FirstSeq: 1, Seq: 10}
	for _, last := range []uint64{20, 5} {
		e := evidence{streamID: "id", first: 1, last: last, ours: true, same: func(uint64) (uint64, bool, error) { return 0, false, broken }}
		if v, err := check(cursor, true, "BUS", e, func() int64 { return 2 }); !errors.Is(err, broken) || v.opens != nil {
			t.Errorf("last %d: the verdict is %+v, %v", last, v, err)
		}
	}
}

// Nothing that the log holds is skipped and nothing is registered twice,
// wherever it went back to, whatever it has lost, and wherever the register has
// gaps.
func TestNoVerdictSkipsOrRepeatsAMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cursor := rapid.Uint64Range(1, 60).Draw(t, "cursor")
		fork := rapid.Uint64Range(1, cursor+1).Draw(t, "fork")
		// The log was put back to just before fork and then written anew.
		last := fork - 1 + rapid.Uint64Range(0, 60).Draw(t, "written anew")
		if fork > cursor {
			last = max(last, cursor)
		}
		first := rapid.Uint64Range(1, last+1).Draw(t, "first")
		holes := rapid.SliceOfN(rapid.Uint64Range(1, 60), 0, 20).Draw(t, "gaps of the register")
		register := told("old", 1, cursor)
		for _, seq := range holes {
			if seq != cursor {
				delete(register, seq)
			}
		}
		stream := story{}
		for seq := first; seq <= last; seq++ {
			switch _, had := register[seq]; {
			case seq >= fork && seq <= cursor:
				stream[seq] = "new"
			case had || seq > cursor:
				stream[seq] = "old"
			}
		}
		c := audit.Cursor{Stream: "BUS", Incarnation: 1, StreamID: "id", FirstSeq: 1, Seq: cursor}
		v, err := check(c, true, "BUS", evidenceOf("id", first, last, stream, register), func() int64 { return 2 })
		if err != nil {
			t.Fatal(err)
		}
		for seq, by := range stream {
			switch registered := register[seq] == by; {
			case !registered && seq < v.from:
				t.Fatalf("message %d is not registered and is skipped: reading goes on at %d", seq, v.from)
			case registered && seq >= v.from:
				t.Fatalf("message %d is registered and is read again: reading goes on at %d", seq, v.from)
			}
		}
		wentBack := fork <= cursor
		if compared := first <= cursor; wentBack && compared && v.opens == nil {
			t.Fatalf("the log went back to %d and nobody noticed: %+v", fork, v)
		}
		if !wentBack && v.opens != nil {
			t.Fatalf("the log goes on and a new incarnation was opened: %+v", v)
		}
		if (v.opens != nil) != (v.incarnation == 2) {
			t.Fatalf("rows go into incarnation %d, opened: %v", v.incarnation, v.opens)
		}
	})
}

// Where the log has messages of a number that the register has a gap at, the
// fork lies in the gap.
func TestAForkWithinAGapOfTheRegisterLosesNothing(t *testing.T) {
	register := merge(told("old", 1, 10), told("old", 16, 20))
	stream := merge(told("old", 1, 10), told("new", 11, 25))
	c := audit.Cursor{Stream: "BUS", Incarnation: 1, StreamID: "id", FirstSeq: 1, Seq: 20}
	v, err := check(c, true, "BUS", evidenceOf("id", 1, 25, stream, register), func() int64 { return 2 })
	if err != nil || v.from != 11 {
		t.Errorf("reading goes on at %d (%v), want 11: messages 11 to 15 are in no row", v.from, err)
	}
}

func TestTheSearchForAForkAsksFewQuestions(t *testing.T) {
	asked := 0
	const fork = 123_457
	got, err := findFork(1, 1_000_000, func(seq uint64) (uint64, bool, error) {
		asked++
		return seq, seq < fork, nil
	})
	if err != nil || got != fork || asked > 21 {
		t.Errorf("fork %d after %d questions, %v; want %d", got, asked, err, fork)
	}
}

// A log that is silent is checked again and again; what is found of it is the
// same until its first message is folded.
func TestASilentLogOpensOneIncarnationHoweverOftenItIsChecked(t *testing.T) {
	l := &loop{lastInc: 7}
	r := &logReader{logSpec: logSpec{name: "TAP"}}
	for range 3 {
		v, err := check(r.cursor, r.known, r.name, evidence{streamID: "s", first: 1, ours: true}, l.nextIncarnation(r))
		if err != nil || v.opens == nil || v.opens.ID != 8 {
			t.Fatalf("the verdict is %+v, %v; want incarnation 8", v, err)
		}
		if r.verdict.opens != nil && !v.same(r.verdict, r.cursor) {
			t.Error("the same finding counts as another")
		}
		r.verdict, l.lastInc = v, v.opens.ID
	}
	r.known, r.cursor = true, audit.Cursor{Stream: "TAP", Incarnation: 8, StreamID: "s", FirstSeq: 1, Seq: 4}
	v, err := check(r.cursor, r.known, r.name, evidence{streamID: "other", first: 1}, l.nextIncarnation(r))
	if err != nil || v.opens.ID != 9 || v.same(r.verdict, r.cursor) {
		t.Errorf("another stream gives %+v, %v; want incarnation 9", v.opens, err)
	}
}
