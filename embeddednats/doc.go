// Package embeddednats runs a nats-server with JetStream inside the process.
//
// # What it guarantees
//
//   - A server that Start returned is ready: it accepts connections and its
//     JetStream is enabled. A server that cannot get there is an error that
//     says why in the server's own words (port taken, store not a directory),
//     at once and not after a timeout, and nothing of it is left running.
//   - It stays inside its process: it installs no signal handler, writes no
//     log of its own and listens on loopback unless it is told otherwise.
//   - Restart and a later Start on the same store directory find the streams as
//     they were left. Restart keeps the ports, so clients come back by
//     themselves; it is the way to thaw a stream that met a full disk, which
//     the server freezes until it starts again.
//   - What the server drops is told. A plain publish that arrives faster than a
//     stream can store is discarded without a word to its sender; the server
//     only logs a warning. That warning, and those about a store that cannot be
//     written, become a DropReport.
//
// # What it does not guarantee
//
// A plain publish is captured only if a PubAck says so. A PubAck is given
// before the fsync: a power cut may take the last Options.SyncInterval of
// acknowledged messages, unless Options.SyncAlways is set. The death of the
// process alone takes nothing that was acknowledged.
//
// The server does not lock its store directory. Two servers on one directory
// destroy it: the caller MUST hold a lock on the data directory before Start and
// release it after Shutdown.
//
// # Order of start and stop
//
// Start: read the nats-server configuration, make the store directory, start the
// server (monitoring port, then JetStream with its recovery of all streams, then
// the client port), wait until it is ready.
//
// Stop: the caller first drains its own connections, so that what they still
// hold is handed over. Shutdown then stops JetStream (every stream writes and
// syncs what it has), closes the client connections and listeners, waits until
// the last goroutine of the server is gone, and at last delivers the drop reports
// that are still queued.
package embeddednats
