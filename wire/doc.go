// Package wire is the contract between Signalbox and everything that talks to
// it over NATS: subjects, headers, ids, error codes and event headers.
//
// It holds what a client needs and nothing else: no I/O, no clock, no
// randomness. Every function is pure, so the bridge may use it while it folds
// the log and reach the same result at every replay.
package wire
