// Package assign is the machine of jobs: work that one agent, the supervisor,
// gives to another, the worker, and hears the end of, whatever becomes of the
// worker.
//
//	create
//	  │      ┌──────────── retry, released ─────────────┐
//	  ▼      ▼                                          │
//	queued ─────────── claim, report ───────────────► running
//	  │  ▲ ▲ │                                          │
//	  │  │ └─┘ retry, released                          │
//	  ├──│────── report succeeded ──────────────────────┼──► succeeded
//	  ├──│────── report failed, no retry left ──────────┼──► failed ────┐
//	  ├──│────── deadline or lease over, no retry left ─┼──► timed_out ─┤
//	  └──│────── cancel ────────────────────────────────┴──► cancelled ─┤
//	     └───────────────── command retry ──────────────────────────────┘
//
// How each state is entered and left:
//
//   - queued is entered by create, and again for the next attempt: when one has
//     failed or timed out with a retry left, when its worker gives the job back
//     (released), and by the command retry. It is left for running by the claim
//     or report of its worker; by a report that ends it at once; by a deadline;
//     by cancel.
//   - running is entered by the first claim of an offered job, or by its
//     worker's claim or report. It is left by a report that ends it, when its
//     deadline or lease is over, and by cancel.
//   - succeeded is entered by the worker's report alone. It is never left.
//   - failed is entered by a report, timed_out by a report or a tick, where no
//     retry is left or the worker says that it is not to be tried again.
//   - cancelled is entered by cancel. It, failed and timed_out are left by the
//     command retry alone.
//
// All changes there are, with their reasons; a test compares this table with
// what happens:
//
//	new        queued     created
//	queued     running    claimed, reported
//	queued     queued     retry, released
//	queued     succeeded  reported
//	queued     failed     reported
//	queued     timed_out  reported, deadline_over
//	queued     cancelled  cancelled
//	running    queued     retry, released
//	running    succeeded  reported
//	running    failed     reported
//	running    timed_out  reported, deadline_over, lease_over
//	running    cancelled  cancelled
//	failed     queued     retry_requested
//	timed_out  queued     retry_requested
//	cancelled  queued     retry_requested
//
// A retry is one change: nobody sees failed in between. What ended the attempt
// is in the field ended of the event, and stays on the attempt's own row.
//
// # Attempts are fences
//
// Each time a job is queued its attempt rises by one. Reports and heartbeats
// name theirs, and only the current one of its own worker counts; so whatever a
// worker that was given up on still says, it changes nothing. It is told why,
// and the supervisor gets a late final report as a message, so that no work is
// lost unseen. A report that repeats what ended its attempt is answered like the
// first time.
//
// # Times
//
// An attempt may be queued for timeout_ms from when it was queued, or from
// run_at if that is later, and may then run for timeout_ms. Nothing extends
// either. With a lease_ms a running attempt must show signs of life as well: a
// heartbeat, progress, or another report that it is running. A tick, and only a
// tick, says that one of these is over. It decides by the job as it is then,
// not as it was when it was found. After a start of the bridge a lease that had
// not run out by then begins anew; deadlines never move.
//
// Dispatch, the handoff message to the worker or the topic, is no change of the
// state. It happens in the step that queues the attempt if run_at has come;
// dispatched_at_ms in that step's event says so. Otherwise a tick does it at
// run_at, with an event dispatched.
//
// # What is kept where
//
// The row of a job (jobs) is small, because each step writes it; what never
// changes and may be large is in job_tasks; attempts has a row for each attempt
// that has ended. Live jobs that were used lately are remembered as their rows
// have them. Everything is written in its step, so memory is never ahead of the
// tables.
//
// # Failures
//
// A row that cannot be read, damaged by another hand, makes only the steps and
// questions about that job fail, with an error that names it. list shows it as
// {job_id, damaged}. Deadlines are read from an index, so the others are met.
//
// A handoff that is lost (its worker was never there, say) ends by the deadline
// of the attempt, a result message that nobody fetches as a dead letter; the job
// itself is always in get.
package assign
