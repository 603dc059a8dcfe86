// Package bench measures a whole Signalbox on this machine and prints ratios of
// figures from one run, which mean more on another machine than the figures do.
//
// The node is the real one: the program starts itself as "serve" in a process
// of its own, and as publishers, ordinary NATS clients, in others. The bench
// only looks at the register, opened read-only.
//
//   - ceiling: rows like those that the publishers make (the same size of body,
//     the same headers, senders and recipients), made beforehand, are appended to
//     a fresh register in the same directory, in batches of 1,000, each committed
//     with fsync. Nothing else happens: no log, no index. It is measured before
//     and after the capture, and the mean counts: a machine has moods.
//   - capture: publishers publish as fast as the server takes it. The time runs
//     from their start until the last row can be seen in the register. Then every
//     row is read: each message carries its number, so that one that is missing
//     and one that is doubled are noticed.
//   - index lag: from that last commit until the look-ups cover that row.
//   - lag: at half the capture rate, the time from the log's timestamp of a
//     message until its row can be seen. The register is looked at every
//     millisecond, so a lag is overstated by up to that, never understated. The
//     bridge's own histogram (signalbox_lag_seconds) knows one row of a batch and
//     powers of two, so it is not used.
//   - burst: many plain publishes at once, without flow control, to an idle node.
//   - api: message.send one after another from a connection of their own.
//   - memory: what the node's process holds in memory (VmRSS) when a million
//     messages have gone through it, and the most that it ever held (VmHWM).
//
// Every load is bounded in number and time. Every process that was started is
// ended and waited for.
package bench
