package bridge

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"signalbox/agents"
	"signalbox/audit"
	"signalbox/inbox"
	"signalbox/message"
	"signalbox/wire"
)

// dryFold folds messages at times of the test's own choice, without a server.
type dryFold struct {
	reg    *audit.Register
	folder folder
	build  builder
	seq    uint64
	at     time.Time
	header wire.Header
}

func newDryFold(t testing.TB, all ...Machine) *dryFold {
	t.Helper()
	reg, err := audit.Open(t.Context(), filepath.Join(t.TempDir(), "signalbox.db"), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reg.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := newMachines(all)
	if err != nil {
		t.Fatal(err)
	}
	config := Config{}
	if err := config.setDefaults(); err != nil {
		t.Fatal(err)
	}
	log := &logReader{}
	return &dryFold{reg: reg, at: time.Unix(1_800_000_000, 0), build: builder{log: log, root: config.Root, stream: config.Stream, incarnation: 1},
		folder: folder{config: &config, machines: m, log: slog.New(slog.DiscardHandler)}}
}

// fold folds one message in a batch of its own.
func (d *dryFold) fold(t testing.TB, subject string, body any) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	d.seq++
	it := d.build.build(subject, d.header, raw, d.seq, d.at)
	b, err := d.reg.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if d.seq == 1 {
		it.opens = &audit.Incarnation{ID: 1, Stream: d.build.stream, FirstSeq: 1, Reason: audit.Created}
	}
	if err := d.folder.fold(b, &it, &folded{}); err != nil {
		t.Fatal(err)
	}
	if err := d.folder.machines.flush(d.reg); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

// due reports whether a tick would find something.
func (d *dryFold) due(t testing.TB) bool {
	t.Helper()
	list, err := d.folder.machines.due(d.reg, d.at.UnixMilli(), 1, func(_ Machine, err error) { t.Fatal(err) })
	if err != nil {
		t.Fatal(err)
	}
	return len(list) > 0
}

// 500 agents that beat every 5 s for 10 minutes cost one row per roll-up, and
// stay online; when they fall silent, they go stale.
func TestM19HeartbeatsOfManyAgentsCostARowPerRollUp(t *testing.T) {
	const many, interval, lasting = 500, 5 * time.Second, 10 * time.Minute
	d := newDryFold(t, agents.New(nil))
	start := d.at
	name := func(i int) string { return fmt.Sprintf("agent-%03d", i) }
	for i := range many {
		d.fold(t, d.folder.config.Root.Command(name(i), "agents", "register"), struct{}{})
	}
	rows := func() (n int) {
		if err := d.reg.QueryRow(`SELECT count(*) FROM messages`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	statuses := func() map[string]int64 {
		c, err := agents.New(nil).Count(d.reg)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	before := rows()
	seen := newBeats()
	second := func(beating bool) {
		d.at = d.at.Add(time.Second)
		for i := range many {
			if beating && int(d.at.Sub(start)/time.Second)%5 == i%5 {
				if counted, _ := seen.again(beatKey{name(i), 1}, d.at); !counted && !seen.admit(beatKey{name(i), 1}, d.at) {
					t.Fatal("a heartbeat was not counted")
				}
			}
		}
		if d.at.Sub(start)%interval == 0 {
			for _, up := range seen.take(d.at, 1<<19) {
				d.fold(t, d.folder.config.Root.Command(wire.Bridge, "agents", verbSeen), up)
			}
		}
		if d.due(t) {
			d.fold(t, d.folder.config.Root.Command(wire.Bridge, clockName, verbTick), struct{}{})
		}
	}
	for d.at.Sub(start) < lasting {
		second(true)
	}
	if n := rows() - before; n > 130 || n < 100 {
		t.Errorf("%d heartbeats added %d rows, want at most 130", many*int(lasting/interval), n)
	}
	if got := statuses(); got["online"] != many {
		t.Errorf("after 10 minutes of heartbeats the agents are %v", got)
	}
	for range 40 {
		second(false)
	}
	if got := statuses(); got["stale"] != many {
		t.Errorf("after 40 s of silence the agents are %v", got)
	}
}

func TestARollUpNamesEachAgentOnceWithItsLastHeartbeat(t *testing.T) {
	b, at := newBeats(), time.Unix(1, 0)
	for i := range 2500 {
		if !b.admit(beatKey{fmt.Sprintf("a-%04d", i), 2}, at.Add(time.Second)) {
			t.Fatal("a heartbeat was not counted")
		}
	}
	if counted, refused := b.again(beatKey{"a-0000", 2}, at.Add(2*time.Second)); !counted || refused {
		t.Errorf("the same heartbeat again: %v, %v", counted, refused)
	}
	if counted, _ := b.again(beatKey{"a-0000", 1}, at.Add(3*time.Second)); counted {
		t.Error("a heartbeat of another generation was counted without a look")
	}
	b.refuse(beatKey{"nobody", 0})
	if _, refused := b.again(beatKey{"nobody", 0}, at); !refused {
		t.Error("a heartbeat that was refused is looked at again")
	}
	ups := b.take(at.Add(4*time.Second), 1<<20)
	if len(ups) != 3 || len(ups[0].Agents) != agents.MaxSeen || len(ups[2].Agents) != 500 {
		t.Fatalf("%d roll-ups", len(ups))
	}
	if got, want := ups[0].Agents[0], (agents.Sighting{ID: "a-0000", Generation: 2, AgoMS: 2000}); got != want {
		t.Errorf("the first sighting is %+v, want %+v", got, want)
	}
	if got := ups[0].Agents[1]; got.AgoMS != 3000 {
		t.Errorf("the second sighting is %+v", got)
	}
	if again := b.take(at, 1<<20); len(again) != 0 {
		t.Errorf("a second roll-up has %v", again)
	}
	if _, refused := b.again(beatKey{"nobody", 0}, at); refused {
		t.Error("a refusal outlives its roll-up")
	}
}

// A roll-up fits into a message of the smallest server that there may be.
func TestARollUpIsNoLargerThanTheServerCarries(t *testing.T) {
	const most = 64 << 10
	b, at := newBeats(), time.Unix(1, 0)
	for i := range 3000 {
		b.admit(beatKey{fmt.Sprintf("%0128d", i), 1 << 40}, at.Add(-1000*time.Hour))
	}
	entries := 0
	for _, up := range b.take(at, most) {
		raw, err := json.Marshal(up)
		if err != nil || len(raw) > most+64 {
			t.Errorf("a roll-up has %d bytes, %v", len(raw), err)
		}
		entries += len(up.Agents)
	}
	if entries != 3000 {
		t.Errorf("the roll-ups have %d entries, want 3000", entries)
	}
}

// M19: what the bridge does about deliveries feeds no loop. A request to nobody
// expires and comes back to its sender as a message, which expires in its turn;
// then nothing is left to happen, ever.
func TestM19TheBridgesOwnEventsFeedNoLoop(t *testing.T) {
	const many = 50
	who := agents.New(inbox.Pending)
	d := newDryFold(t, message.Machine{}, who, inbox.New(inbox.Facts{Agents: who, Rows: audit.Rows{}}))
	d.fold(t, "bus.cmd.me.agents.register", struct{}{})
	for i := range many {
		d.header = wire.Header{wire.HeaderTTL: {"1000"}, wire.HeaderType: {string(wire.TypeRequest)}}
		d.fold(t, fmt.Sprintf("bus.msg.me.agent.nobody%d", i), struct{}{})
	}
	d.header = wire.Header{}
	queued := func() (n int64) { // the outbox is this test's to send
		if err := d.reg.QueryRow(`SELECT outbox_last FROM bridge_state`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	sent := int64(0)
	for hour := range 100 {
		for ; sent < queued(); sent++ {
			var subject, body string
			if err := d.reg.QueryRow(`SELECT subject, body FROM outbox WHERE n = ?`, sent+1).Scan(&subject, &body); err != nil {
				t.Fatal(err)
			}
			d.fold(t, subject, json.RawMessage(body))
		}
		d.at = d.at.Add(time.Hour)
		for d.due(t) {
			d.fold(t, d.folder.config.Root.Command(wire.Bridge, clockName, verbTick), struct{}{})
		}
		if hour > 5 && sent < queued() {
			t.Fatalf("in hour %d there are still %d events to send", hour, queued()-sent)
		}
	}
	counts := map[string]int{}
	for what, query := range map[string]string{
		"told that nobody is there": `SELECT count(*) FROM outbox WHERE subject = 'bus.evt.notice.me.unknown_recipient'`,
		"told of the end":           `SELECT count(*) FROM outbox WHERE subject = 'bus.evt.notice.me.dead'`,
		"messages to the sender":    `SELECT count(*) FROM outbox WHERE subject = 'bus.msg.signalbox.agent.me'`,
		"of the bridge's own":       `SELECT count(*) FROM outbox WHERE subject = 'bus.evt.notice.signalbox.dead'`,
	} {
		var n int
		if err := d.reg.QueryRow(query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if counts[what] = n; n != many {
			t.Errorf("%s: %d, want %d", what, n, many)
		}
	}
}

// The loop's cost of a heartbeat: counting it, and its share of folding the
// roll-up.
func BenchmarkHeartbeat(b *testing.B) {
	const many = 500
	d := newDryFold(b, agents.New(nil))
	seen := newBeats()
	names := make([]string, many)
	for i := range many {
		names[i] = fmt.Sprintf("agent-%03d", i)
		d.fold(b, d.folder.config.Root.Command(names[i], "agents", "register"), struct{}{})
		seen.admit(beatKey{names[i], 1}, d.at)
	}
	b.Run("count", func(b *testing.B) {
		for i := range b.N {
			seen.again(beatKey{names[i%many], 1}, d.at)
		}
	})
	b.Run("fold", func(b *testing.B) {
		for done := 0; done < b.N; done += many {
			d.at = d.at.Add(5 * time.Second)
			for _, id := range names {
				seen.admit(beatKey{id, 1}, d.at)
			}
			for _, up := range seen.take(d.at, 1<<19) {
				d.fold(b, d.folder.config.Root.Command(wire.Bridge, "agents", verbSeen), up)
			}
		}
	})
}
