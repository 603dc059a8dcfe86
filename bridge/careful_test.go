package bridge_test

import (
	"fmt"
	"testing"

	"signalbox/bridge"
)

// A batch with a step that fails is folded again with a savepoint around every
// step. What is stored must not depend on that, nor on where batches begin.
func TestWhatIsStoredDependsNeitherOnBatchesNorOnWhatFailsInThem(t *testing.T) {
	const n = 300
	fails := []string{"", "", "panic", "", "refuse", "", "error", "", ""}
	fold := func(batch int) map[string]string {
		r := start(t, plan{config: func(c *bridge.Config) { c.BatchMax = batch }})
		for i := range n {
			a := add{Key: fmt.Sprintf("k%d", i%7), N: int64(i), Fail: fails[i%len(fails)], Tell: "friend"}
			if err := r.nc.Publish("bus.cmd.me.counter.add", body(a)); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.nc.Flush(); err != nil {
			t.Fatal(err)
		}
		r.request(t, "bus.api.me.counter.add", body(add{Key: "last", N: 1}), nil)
		r.settled(t)
		db, tables := r.db(t), map[string]string{}
		for name, query := range map[string]string{
			"state":       `SELECT group_concat(key || '=' || value, ' ') FROM (SELECT * FROM counter ORDER BY key)`,
			"transitions": `SELECT group_concat(key || from_state || to_state || reason, ' ') FROM (SELECT * FROM transitions ORDER BY id)`,
			"refusals":    `SELECT group_concat(code || error, ' ') FROM (SELECT * FROM refusals ORDER BY id)`,
			"letters":     `SELECT group_concat(recipient || reason || last_error, ' ') FROM (SELECT * FROM dead_letters ORDER BY id)`,
			"bodies": `SELECT group_concat(subject || body, ' ') FROM (SELECT subject, json_remove(body, '$.cause', '$.id', '$.message_id', '$.expires_at_ms') AS body
				FROM messages WHERE "from" = 'signalbox' AND kind <> 'cmd' ORDER BY subject, body)`,
		} {
			tables[name] = one[string](t, db, query)
		}
		r.stop(t)
		return tables
	}
	want := fold(1)
	for _, batch := range []int{7, 1000} {
		for name, got := range fold(batch) {
			if got != want[name] {
				t.Errorf("%s with batches of %d differ from those with batches of 1:\n%.400s\n%.400s", name, batch, got, want[name])
			}
		}
	}
}
