-- The tables of the machine assign. Instants are milliseconds of bus time.

-- +goose Up

-- One row a job, small, since it changes with each step.
CREATE TABLE jobs (
  n                   INTEGER PRIMARY KEY,  -- in the order of creation
  job_id              TEXT    NOT NULL UNIQUE,
  supervisor_agent    TEXT    NOT NULL,  -- who created it and hears of it
  worker_agent        TEXT,              -- who is to do it; NULL while it is offered to worker_topic
  worker_topic        TEXT,              -- NULL: it is for one agent
  topic               TEXT    NOT NULL,  -- of its handoff
  status              TEXT    NOT NULL,  -- queued, running, succeeded, failed, timed_out, cancelled
  attempt             INTEGER NOT NULL,  -- 1, 2, 3 …
  retry_count         INTEGER NOT NULL,
  max_retries         INTEGER NOT NULL,
  priority            INTEGER NOT NULL,  -- 1 to 9
  timeout_ms          INTEGER NOT NULL,  -- how long it may be queued, and then how long an attempt may run
  lease_ms            INTEGER,           -- how long it may run without a sign of life; NULL for ever
  deadline_ms         INTEGER,           -- an instant; NULL when it is over
  run_at_ms           INTEGER NOT NULL,  -- an instant: not dispatched before
  lease_expires_at_ms INTEGER,           -- while it runs with a lease
  due_at_ms           INTEGER,           -- when a tick must look at it: run_at until it is dispatched, then deadline or lease
  dedup_key           TEXT,
  trace_id            TEXT    NOT NULL,
  correlation_id      TEXT    NOT NULL,
  last_message_id     TEXT,              -- of the last message about it: handoff, cancel or result
  result              TEXT,              -- JSON, as reported
  error               TEXT,              -- JSON, as reported, or of the machine
  created_at_ms       INTEGER NOT NULL,
  updated_at_ms       INTEGER NOT NULL,  -- of the last change but signs of life
  started_at_ms       INTEGER,           -- of this attempt
  dispatched_at_ms    INTEGER,           -- when the handoff of this attempt was queued
  completed_at_ms     INTEGER,
  last_retry_at_ms    INTEGER,
  begun_by            TEXT    NOT NULL,  -- what began this attempt: created, retry, released, retry_requested
  begun_at_ms         INTEGER NOT NULL,
  begun_id            INTEGER NOT NULL,  -- messages.id of its cause
  started_id          INTEGER,           -- messages.id of what made it running
  digest              TEXT    NOT NULL   -- SHA-256 of the command that created it, normalized, hex
) STRICT;
CREATE INDEX jobs_due ON jobs (due_at_ms, job_id) WHERE due_at_ms IS NOT NULL;
CREATE UNIQUE INDEX jobs_dedup ON jobs (supervisor_agent, dedup_key) WHERE dedup_key IS NOT NULL AND status IN ('queued', 'running');
-- For lists, the last updated first. A list by status is one range a status,
-- and so is the list of all.
CREATE INDEX jobs_status ON jobs (status, updated_at_ms);
CREATE INDEX jobs_supervisor ON jobs (supervisor_agent, updated_at_ms);
CREATE INDEX jobs_worker ON jobs (worker_agent, updated_at_ms) WHERE worker_agent IS NOT NULL;
CREATE INDEX jobs_trace ON jobs (trace_id);
CREATE INDEX jobs_correlation ON jobs (correlation_id);

-- What a job is about; it never changes.
CREATE TABLE job_tasks (
  n       INTEGER PRIMARY KEY,  -- jobs.n
  task    TEXT,                 -- JSON
  payload TEXT                  -- JSON
) STRICT;

-- Attempts that have ended. The current one of a live job is in its row.
CREATE TABLE attempts (
  n              INTEGER NOT NULL,  -- jobs.n
  attempt        INTEGER NOT NULL,
  job_id         TEXT    NOT NULL,
  worker_agent   TEXT,              -- NULL: nobody had claimed it
  begun_by       TEXT    NOT NULL,
  begun_at_ms    INTEGER NOT NULL,
  started_at_ms  INTEGER,           -- NULL: it never ran
  finished_at_ms INTEGER NOT NULL,
  outcome        TEXT    NOT NULL,  -- succeeded, failed, timed_out, cancelled, released
  reason         TEXT    NOT NULL,  -- reported, deadline_over, lease_over, cancelled
  reported       INTEGER NOT NULL,  -- 1: its worker said so itself
  retryable      INTEGER NOT NULL,  -- 0: its worker said that it is not to be tried again
  requeued       INTEGER NOT NULL,  -- 1: its end queued the job again
  result         TEXT,              -- JSON
  error          TEXT,              -- JSON
  begun_id       INTEGER NOT NULL,  -- messages.id of the causes
  started_id     INTEGER,
  finished_id    INTEGER NOT NULL,
  PRIMARY KEY (n, attempt)
) STRICT, WITHOUT ROWID;

CREATE VIEW jobs_iso AS
SELECT job_id, status, attempt, retry_count, max_retries, priority, supervisor_agent, worker_agent, worker_topic, topic,
       t.task, t.payload, result, error, timeout_ms, lease_ms, dedup_key, trace_id, correlation_id, last_message_id, begun_by,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at_ms / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', run_at_ms / 1000.0, 'unixepoch') AS run_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', dispatched_at_ms / 1000.0, 'unixepoch') AS dispatched_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_at_ms / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', lease_expires_at_ms / 1000.0, 'unixepoch') AS lease_expires_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', deadline_ms / 1000.0, 'unixepoch') AS deadline,
       strftime('%Y-%m-%dT%H:%M:%fZ', updated_at_ms / 1000.0, 'unixepoch') AS updated_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', completed_at_ms / 1000.0, 'unixepoch') AS completed_at
  FROM jobs LEFT JOIN job_tasks t USING (n);
CREATE VIEW attempts_iso AS
SELECT job_id, attempt, worker_agent, begun_by, outcome, reason, reported, retryable, requeued, result, error,
       begun_id, started_id, finished_id,
       strftime('%Y-%m-%dT%H:%M:%fZ', begun_at_ms / 1000.0, 'unixepoch') AS begun_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_at_ms / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', finished_at_ms / 1000.0, 'unixepoch') AS finished_at
  FROM attempts;
