// Package roles is the machine that knows who may speak for what: which agent
// holds the one cto of a project or the lead of a scope, and at which epoch.
//
//	            ensure
//	              │
//	              ▼     all candidates excluded
//	┌────────► electable ───────────────────────► quarantined
//	│ lease     │    ▲ ▲    time over,              │    ▲
//	│ over,     │    │ └────────────────────────────┘    │
//	│ offline,  │    │      something new                │ all failed
//	│ resigned, │    │                                   │ too often
//	│ revoked   │    └───────────────────────────── unreachable
//	│           │       another candidate, or none   ▲    │
//	│ candidate │                                    │    │
//	│           ▼         probe or ack fails         │    │
//	├──────── elected-probing ───────────────────────┘    │
//	│           │  ▲ ▲                                    │
//	│       ack │  │ └────────────────────────────────────┘
//	│           │  │ charter issued,      retry due
//	│           ▼  │ restart
//	└────────── active
//
//	from every state: elections off, gap of the log ──► electable
//	                  scope closed ──► closed, for good
//
// How each state is entered and left (table.go has every line of it, and
// nothing else happens):
//
//   - electable, nobody has it: entered by the first ensure, by every loss of a
//     holder, and from unreachable and quarantined when there is somebody to
//     elect, or nobody left to wait for. It is left for elected-probing in the
//     same step as there is an eligible candidate, for quarantined when all
//     candidates are excluded. Without a candidate it stays, blocked.
//   - elected-probing, somebody is reserved: the candidate is asked (its lease
//     answers where it cannot be), and once it can be reached it is sent the
//     activation. Left for active by its ack, for unreachable when probe or ack
//     fails, for electable when it goes.
//   - active, the holder acts at the epoch: entered by an ack of the current
//     activation, and only so. Left when the holder's lease is over, it goes
//     offline, resigns or is revoked; for elected-probing when a charter is
//     issued or every connection was dropped.
//   - unreachable, whoever was reserved has failed and is left out for a while:
//     left at once for the next candidate, else when the first of them may be
//     tried again, or for quarantined when all have failed too often.
//   - quarantined, all candidates are excluded: left when the first exclusion is
//     over, or when a candidate, a locator or a capability is new.
//   - closed: entered by close_scope from every other state, never left. The row
//     stays, with its last epoch.
//
// # Safety: at most one agent acts for a role
//
// A role is one row with one holder, so two agents cannot be active at once in
// the log's order. What could go wrong is an agent that has not heard that it
// lost the role. Therefore each act carries an epoch, and the epoch is another
// after every change of hands: epoch and activation_seq rise by one on each
// action that reserves, revokes or fences, and never fall, not even when a scope
// is closed. So an epoch was given to one agent only, and an act at any epoch
// but the current one, by any agent but the holder, or for a role that is not
// active, is refused (STALE_EPOCH, HOLDER_MISMATCH), registered, and told to its
// sender. An ack must repeat epoch, activation_seq and activation_id, so one of
// an old activation never activates. A holder whose lease is over is found out
// by its own next message at the latest: the machine of agents ends that lease
// before the message is judged. A resource that is outside the log asks with
// fence_check, which is a command and so has its place in the same order.
//
// Should the log have a gap, an epoch may have been given out that the register
// never had. Every role is fenced then, and its epoch raised by more than the
// missing messages can have caused; roles that are made later start at the sum
// of all raises.
//
// # Liveness: a role that is wanted gets a holder
//
// From its first ensure a role is wanted until it is closed. Each event after
// which somebody may have become eligible leads to a look at the candidates in
// the same step: an agent that registers or returns, a candidacy, an exclusion
// that ends, elections switched on, a start. Each state but active and closed
// that does not wait for such an event has a deadline: elected-probing that of
// the ack, unreachable and quarantined the end of the first exclusion. A lease
// that is over though no tick has said so may be renewed by a heartbeat that is
// on its way, which nobody would tell; a role that sees one looks again a second
// later. An agent that declines (resigns), or is revoked, is passed over for at
// least a step of the backoff, so that a holder and the machine do not hand the
// role to and fro for ever. A role whose candidates have all failed needs no
// operator: quarantine ends.
//
// # Failures
//
//   - A probe that a crash loses has no outcome; the deadline of the ack ends it.
//   - An activation that is lost with its message ends in the same way, and costs
//     the candidate one failure.
//   - The embedded server restarts, so every connection was dropped: a holder
//     whose lease is over loses the role, the others are probed anew at a new
//     epoch, an activation without a holder is fenced. Then each role that is
//     wanted is looked at.
//   - Elections are switched off in the middle of one: fenced at once, and what
//     is on its way finds an old activation.
//   - A damaged row is announced (event damaged) and passed over; the other roles
//     go on. What is asked about it is a fault of that step alone.
//
// Which agents there are, what they can do and whether their leases hold are
// facts of other machines, read through Facts; what waits for a role's holder is
// the inbox's, which asks Held.
package roles
