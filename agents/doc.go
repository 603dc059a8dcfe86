// Package agents is the machine that knows who is there: who has registered,
// what for, and whether there has been a sign of life within its lease.
//
//	                     register (generation + 1)
//	(unknown) ───────────────────────────────────────────────► online
//
//	           lease over                      offline_after over
//	online ─────────────────────► stale ─────────────────────────► offline
//	 │  ▲                           │                                │  ▲
//	 │  └── sign of life, register ─┴────────────────────────────────┘  │
//	 └───────── deregister (from stale and offline too) ────────────────┘
//
// How each state is entered and left:
//
//   - online is entered by a registration, and from stale and offline by any
//     sign of life. It is left when the lease is over, or by deregister.
//   - stale is entered when the lease is over: a tick says so, or the sender's
//     own next message, before that message is judged. It is left by a sign of
//     life, by deregister, and after offline_after for offline.
//   - offline is entered from stale after offline_after, and by deregister from
//     anywhere. It is left by a sign of life; by nothing but a registration
//     where the agent has deregistered.
//
// A sign of life is a heartbeat, an entry of the roll-up of heartbeats (the
// command seen), or any message or command of the agent, even one that was
// refused. It moves the lease to the time of the sign plus the agent's
// heartbeat_ttl_ms, and never back.
//
// # Generations
//
// Each registration that differs from the last begins a generation, 1, 2, 3 …
// The same one, with the same session_id, is a renewal of the current
// generation. A process that was replaced may go on for a while under the same
// id. What it says with its own generation, or asks by a command that needs
// one (deregister), is refused with STALE_GENERATION and is no sign of life,
// so in every order the newer generation stays. What names no generation
// counts for the id: the subject is the identity.
//
// # What is kept where
//
// The truth is the table agents. During a batch all agents are in memory too:
// a message costs a look-up and two numbers there, and Flush writes before the
// commit what has changed, so that what a commit holds depends on the log
// alone, not on where a batch ends. Facts for other machines that are folding
// come from memory; queries, Admit and the facts named …OnTable read the table
// and may run beside the fold, on a connection of their own.
//
// # Failures
//
// A row that cannot be read (damaged by another hand) is told by list, by get
// and by everything that is asked about that agent; the others go on, and a new
// registration repairs it. Under a topic it is not found, and its messages are
// not counted as signs of life.
package agents
