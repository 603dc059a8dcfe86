// Package audit is the register: the durable, queryable record of every
// message on the bus and of everything it caused.
//
// # Two files
//
// The register (signalbox.db) is the truth: rows, the state tables of the
// machines, the outbox, and the cursor of each log, all written by one writer
// in one transaction a batch. The index (index.db) is a follower with its own
// writer and watermark: look-ups by random ids and full text. It can be deleted
// at any time and is built again; a query checks every hit against the row and
// scans the rows that the index has not reached yet, so its answer never
// depends on how far the index is.
//
// # One writer, many readers
//
// [Register] is the one writer; only the goroutine that folds the log may use
// it. [Reader] opens the same file read-only, in this or any other process,
// with the bridge running, stopped or crashed.
//
// # Exactly once
//
// A row and the cursor that covers it are committed together, so a message is
// in the register exactly once whatever crashes. Row ids are given out by the
// writer: 1, 2, 3 … without holes. Rows, transitions and gaps never change;
// triggers refuse it.
package audit
