// Package inbox is the machine that knows who must still get what, and what
// became of it. The register row of a message never changes; what happens to
// it is a delivery, one for each recipient:
//
//	           fetch               ack
//	queued ─────────────► delivered ─────────► acked
//	 │  │                  │ ▲  │ │              ▲
//	 │  │                  └─┘  │ │              │
//	 │  │              fetch    │ │              │
//	 │  │              again    │ │              │
//	 │  └──── ack, fetch with auto_ack ──────────┘
//	 │                          │ │   TTL over
//	 ├──────────────────────────┼─┴───────────────────► expired ─────┐
//	 └──────────────────────────┴─────────────────────► dead_letter ─┤
//	                            reject, scope closed                 │
//	queued ◄───────────────────────────────── redrive ───────────────┘
//
// How each state is entered and left:
//
//   - queued is entered when a message is registered, and by redrive. It is
//     left by the first fetch, by ack and reject of what was read elsewhere,
//     when the time to live is over, and when the scope of its role is closed.
//   - delivered is entered by a fetch, and again by each later one: of the same
//     registration after redeliver_after_ms, of a new registration or a new
//     holder at once. It is left by ack and reject, when the time to live is
//     over, and when the scope of its role is closed.
//   - acked is entered by ack, and by a fetch with auto_ack. It is final.
//   - expired is entered when the time to live is over and a tick has said so.
//   - dead_letter is entered by reject, and when the scope of a role is closed.
//   - Both have a row in dead_letters and are told to the sender, who also gets
//     a message where a request or handoff expired. They are left by redrive.
//
// # Whom for
//
// A recipient is an agent with delivery inbox, known or not; or
// "topic:<topic>" while a message waits for the first that subscribes; or
// "role:<project>/<kind>[/<scope>]". Whoever holds the role fetches from the
// role's recipient beside its own, so a handover moves nothing. An agent with
// delivery live is owed nothing.
//
// # Safety
//
// There is at most one delivery for a recipient and a message: that is the
// primary key. Everything that happens to it is folded from the log in one
// order, so of two fetches one is first and the other sees its marks. A
// delivery whose time is over is given out by nobody, even before the tick
// that buries it.
//
// # Liveness
//
// What is delivered and not acked is given out again after redeliver_after_ms.
// What nobody acks meets its deadline, and becomes a dead letter that its
// sender hears of. Work that could be large goes in steps of at most 500, each
// of them due at once.
//
// # What is kept where
//
// New deliveries and changes of the totals wait in memory during a batch;
// Flush writes them before the commit, and everything that reads the tables in
// the fold flushes first. So a message to an agent costs no SQL when it is
// folded, and what a commit holds does not depend on where a batch ends.
package inbox
