-- The register and the bridge's own tables. All tables are STRICT; instants
-- are nanoseconds (…at) or milliseconds (…_at_ms) since 1970-01-01 UTC.

-- +goose Up

-- One row: what the bridge carries from one message to the next.
CREATE TABLE bridge_state (
  id            INTEGER PRIMARY KEY CHECK (id = 1),
  register_id   TEXT    NOT NULL,            -- UUID of this register, made once
  bus_ns        INTEGER NOT NULL DEFAULT 0,  -- bus time, ns; never goes back
  log_ns        INTEGER NOT NULL DEFAULT 0,  -- time of the last message of the log, ns
  rules_version TEXT    NOT NULL DEFAULT '', -- rules that made the state tables
  settings      TEXT    NOT NULL DEFAULT '{}', -- of the last bridge.started, JSON
  outbox_last   INTEGER NOT NULL DEFAULT 0,  -- greatest outbox number given out
  outbox_seen   INTEGER NOT NULL DEFAULT 0   -- every entry up to this one has come back
) STRICT;

-- Every message, once, as it came. Rows never change and never go.
CREATE TABLE messages (
  id             INTEGER PRIMARY KEY,  -- 1, 2, 3 …: no holes
  incarnation    INTEGER NOT NULL,     -- incarnations.id
  seq            INTEGER NOT NULL,     -- the stream's sequence number
  at             INTEGER NOT NULL,     -- the log's time, ns
  kind           TEXT    NOT NULL,     -- msg, cmd, evt, tap
  subject        TEXT    NOT NULL,
  message_id     TEXT    NOT NULL,     -- Nats-Msg-Id, or derived
  type           TEXT    NOT NULL,
  "from"         TEXT,
  "to"           TEXT,                 -- agent:x, topic:t, role:p/k[/s]
  identity       TEXT    NOT NULL,     -- claimed, verified
  topic          TEXT,
  priority       INTEGER NOT NULL,     -- 1 to 9
  expires_at_ms  INTEGER,
  correlation_id TEXT    NOT NULL,
  trace_id       TEXT    NOT NULL,
  headers        TEXT    NOT NULL,     -- JSON object of arrays, names sorted
  headers_raw    BLOB,                 -- lp(name) lp(value) pairs, where they are not UTF-8
  body           TEXT,                 -- where it is UTF-8 without NUL
  body_raw       BLOB,                 -- otherwise
  leaf           BLOB    NOT NULL      -- SHA-256, the row's leaf in the Merkle tree
) STRICT;

-- Rows are found by place through one entry for every 256th sequence number
-- (and each incarnation's first): a full index would cost a third of the
-- insert rate, and rows of one incarnation stand in the order of their numbers.
CREATE TABLE places (
  incarnation INTEGER NOT NULL,
  seq         INTEGER NOT NULL,
  id          INTEGER NOT NULL,
  PRIMARY KEY (incarnation, seq)
) STRICT, WITHOUT ROWID;

-- A stretch of a stream's life in which its numbers mean what they meant.
CREATE TABLE incarnations (
  id        INTEGER PRIMARY KEY,
  stream    TEXT    NOT NULL,
  stream_id TEXT    NOT NULL,  -- UUID in the stream's metadata; '' for streams of others
  first_seq INTEGER NOT NULL,
  first_id  INTEGER NOT NULL,  -- messages.id of its first row
  reason    TEXT    NOT NULL   -- created, stream_changed, log_went_back
) STRICT;

-- Where each log has been read to; written with the rows it covers.
CREATE TABLE cursors (
  stream      TEXT    PRIMARY KEY,
  incarnation INTEGER NOT NULL,
  seq         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What a log had and the register has not.
CREATE TABLE gaps (
  id          INTEGER PRIMARY KEY,
  stream      TEXT    NOT NULL,
  incarnation INTEGER NOT NULL,  -- in which from_seq counts
  from_seq    INTEGER NOT NULL,
  to_seq      INTEGER,           -- NULL: unknown
  reason      TEXT    NOT NULL,  -- overtaken, missing, stream_changed, log_went_back
  cause       INTEGER NOT NULL,  -- messages.id of the row just after it
  at_ms       INTEGER NOT NULL
) STRICT;

-- Every change of a state column.
CREATE TABLE transitions (
  id         INTEGER PRIMARY KEY,
  machine    TEXT    NOT NULL,
  key        TEXT    NOT NULL,
  from_state TEXT    NOT NULL,  -- '' when it is new
  to_state   TEXT    NOT NULL,
  reason     TEXT    NOT NULL,
  cause      INTEGER NOT NULL,  -- messages.id
  at_ms      INTEGER NOT NULL   -- bus time
) STRICT;
CREATE INDEX transitions_key ON transitions (machine, key, id);
CREATE INDEX transitions_cause ON transitions (cause);

-- What became of each command or message that was refused.
CREATE TABLE refusals (
  id    INTEGER PRIMARY KEY,    -- messages.id
  code  TEXT    NOT NULL,
  error TEXT    NOT NULL        -- JSON
) STRICT;

-- The first outcome of each request id, kept 24 h of bus time.
CREATE TABLE outcomes (
  "from"    TEXT    NOT NULL,
  id        TEXT    NOT NULL,
  body_hash BLOB    NOT NULL,   -- SHA-256 of subject, headers that count and body
  status    INTEGER NOT NULL,   -- 0 done, otherwise the error's status
  reply     TEXT    NOT NULL,   -- JSON
  cause     INTEGER NOT NULL,   -- messages.id of the first
  at_ms     INTEGER NOT NULL,   -- bus time
  PRIMARY KEY ("from", id)
) STRICT, WITHOUT ROWID;
CREATE INDEX outcomes_at ON outcomes (at_ms);

-- Events and messages of the bridge that have not come back through the log.
CREATE TABLE outbox (
  n       INTEGER PRIMARY KEY,
  id      TEXT    NOT NULL UNIQUE,  -- UUIDv7, the Nats-Msg-Id
  subject TEXT    NOT NULL,
  headers TEXT    NOT NULL,         -- JSON object of arrays
  body    BLOB    NOT NULL,
  cause   INTEGER NOT NULL,         -- messages.id
  seen    INTEGER NOT NULL DEFAULT 0 -- 1: came back before an earlier one, or is given up
) STRICT;

-- What was not delivered, refused, or given up on.
CREATE TABLE dead_letters (
  recipient    TEXT    NOT NULL,
  id           INTEGER NOT NULL,  -- messages.id
  reason       TEXT    NOT NULL,  -- refused:<CODE>, OUTBOX_REFUSED …
  failed_at_ms INTEGER NOT NULL,  -- bus time
  last_error   TEXT    NOT NULL,
  cause        INTEGER NOT NULL,  -- messages.id
  PRIMARY KEY (recipient, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dead_letters_at ON dead_letters (failed_at_ms);

-- The state tables as they were when the rules changed.
CREATE TABLE snapshots (
  id            INTEGER PRIMARY KEY,
  rules_version TEXT    NOT NULL,  -- of the rules that fold from here
  next_id       INTEGER NOT NULL   -- messages.id of the first row not in it
) STRICT;
CREATE TABLE snapshot_rows (
  snapshot   INTEGER NOT NULL,
  table_name TEXT    NOT NULL,
  n          INTEGER NOT NULL,
  row        TEXT    NOT NULL,     -- JSON object; a BLOB as {"hex": "…"}
  PRIMARY KEY (snapshot, table_name, n)
) STRICT, WITHOUT ROWID;

-- +goose StatementBegin
CREATE TRIGGER messages_update BEFORE UPDATE ON messages
BEGIN SELECT RAISE(ABORT, 'register rows are immutable'); END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER messages_delete BEFORE DELETE ON messages
BEGIN SELECT RAISE(ABORT, 'register rows are immutable'); END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER transitions_update BEFORE UPDATE ON transitions
BEGIN SELECT RAISE(ABORT, 'transitions are immutable'); END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER transitions_delete BEFORE DELETE ON transitions
BEGIN SELECT RAISE(ABORT, 'transitions are immutable'); END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER gaps_update BEFORE UPDATE ON gaps
BEGIN SELECT RAISE(ABORT, 'gaps are immutable'); END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER gaps_delete BEFORE DELETE ON gaps
BEGIN SELECT RAISE(ABORT, 'gaps are immutable'); END;
-- +goose StatementEnd

-- The same for people: ISO times, one body column.
CREATE VIEW messages_iso AS
SELECT id, incarnation, seq,
       strftime('%Y-%m-%dT%H:%M:%S', at / 1000000000, 'unixepoch') || printf('.%09dZ', at % 1000000000) AS at,
       kind, subject, message_id, type, "from", "to", identity, topic, priority,
       strftime('%Y-%m-%dT%H:%M:%fZ', expires_at_ms / 1000.0, 'unixepoch') AS expires_at,
       correlation_id, trace_id, headers, coalesce(body, body_raw) AS body, lower(hex(leaf)) AS leaf
  FROM messages;
CREATE VIEW transitions_iso AS
SELECT id, machine, key, from_state, to_state, reason, cause,
       strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS at
  FROM transitions;
CREATE VIEW gaps_iso AS
SELECT id, stream, incarnation, from_seq, to_seq, reason, cause,
       strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS at
  FROM gaps;
CREATE VIEW dead_letters_iso AS
SELECT recipient, id, reason, last_error, cause,
       strftime('%Y-%m-%dT%H:%M:%fZ', failed_at_ms / 1000.0, 'unixepoch') AS failed_at
  FROM dead_letters;
