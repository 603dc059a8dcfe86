// Package bridge folds the log of the bus into the register.
//
// # One log, one fold
//
// The stream BUS is the one total order of everything said on the bus. One
// goroutine, the loop, reads it in that order. For each message it writes the
// register row, lets the machine that the message is addressed to decide,
// stores the new state and queues the announcements; one SQLite transaction
// covers a batch of messages with all they caused and the cursor reached. What
// changes state goes through the log, timers and restarts included, so the
// state is a function of the log.
//
//	publish ──► stream BUS ──► reader ──► loop ──one tx──► register
//	                ▲                      │ after the commit
//	                │                      ├──► replies
//	                └── publisher ◄── outbox
//
// # Ordering and back-pressure
//
// Messages are registered in the order of their stream; taps have streams of
// their own, which drive no machine, and stand between them in any order. A
// reader runs at most 16 MiB ahead of the fold and then lets the stream wait:
// the stream is the buffer, and a bridge that is slow or down loses nothing.
// When the fold is more than 2 s or 50,000 messages behind, requests are
// refused with LAGGING instead of timing out. The proof that a message was
// captured is the server's PubAck; a reply means that it is committed, with an
// fsync, in the register.
//
// # Goroutines
//
// [Bridge.Run] owns and joins all of them: the loop, one reader a log, the
// outbox publisher, the query workers, the follower of the index and the
// checkpointer. Only the loop touches the register's writer; the others get
// what they need through channels of fixed size.
package bridge
