-- The tables of the machines agents and inbox. Instants are milliseconds of
-- bus time.

-- +goose Up

-- Who is there: one row an agent, whatever has become of it.
CREATE TABLE agents (
  agent_id            TEXT    PRIMARY KEY,
  cli                 TEXT    NOT NULL,  -- codex, gemini, claude, other
  pid                 INTEGER,
  capabilities        TEXT    NOT NULL,  -- JSON array, sorted
  topics              TEXT    NOT NULL,  -- JSON array, sorted
  project_id          TEXT    NOT NULL,  -- '' for none
  session_id          TEXT    NOT NULL,  -- '' for none
  host_id             TEXT    NOT NULL,
  transport_locators  TEXT    NOT NULL,  -- JSON array, as registered
  metadata            TEXT    NOT NULL,  -- JSON object, as registered
  delivery            TEXT    NOT NULL,  -- inbox, live
  registration        TEXT    NOT NULL,  -- SHA-256 of the registration as it was made, hex
  generation          INTEGER NOT NULL,  -- 1, 2, 3 …: of the registration
  lease_id            TEXT    NOT NULL,  -- UUIDv7, one a generation
  heartbeat_ttl_ms    INTEGER NOT NULL,
  status              TEXT    NOT NULL,  -- online, stale, offline
  deregistered        INTEGER NOT NULL,  -- 1: only a registration brings it back
  registered_id       INTEGER NOT NULL,  -- messages.id of the generation's registration
  registered_at_ms    INTEGER NOT NULL,
  last_seen_at_ms     INTEGER NOT NULL,
  lease_expires_at_ms INTEGER NOT NULL,
  status_since_ms     INTEGER NOT NULL,
  deadline_at_ms      INTEGER            -- when online or stale end; NULL when offline
) STRICT, WITHOUT ROWID;
CREATE INDEX agents_deadline ON agents (deadline_at_ms, agent_id) WHERE deadline_at_ms IS NOT NULL;

-- What became of each message for each of its recipients. The primary key is
-- in the order of arrival, so that a new delivery is an append; what is open
-- is found through partial indexes, which what is finished leaves.
CREATE TABLE deliveries (
  id              INTEGER NOT NULL,            -- messages.id
  recipient       TEXT    NOT NULL,            -- an agent id; topic:… or role:… while it waits for one
  topic           TEXT,                        -- of the message; NULL for none
  priority        INTEGER NOT NULL,            -- 1 to 9
  queued_at_ms    INTEGER NOT NULL,            -- when it was made, or last redriven
  expires_at_ms   INTEGER NOT NULL,
  attempts        INTEGER NOT NULL DEFAULT 0,  -- fetches that gave it out
  message_id      TEXT,                        -- since the first fetch, for acks by it
  delivered_at_ms INTEGER,                     -- of the last fetch; NULL: to be fetched
  delivered_id    INTEGER,                     -- messages.id of that fetch
  delivered_to    TEXT,                        -- the agent that fetched it
  outcome         TEXT,                        -- NULL while open; acked, expired, rejected, dead_letter
  outcome_at_ms   INTEGER,
  outcome_id      INTEGER,                     -- messages.id of its cause
  acked_at_ms     INTEGER,
  redriven_id     INTEGER,                     -- messages.id of the last redrive
  PRIMARY KEY (id, recipient)
) STRICT, WITHOUT ROWID;
-- The time is in it so that what has expired and was not swept yet is passed
-- over without its row.
CREATE INDEX deliveries_fresh ON deliveries (recipient, priority DESC, id, expires_at_ms)
  WHERE outcome IS NULL AND delivered_at_ms IS NULL;
-- For listings.
CREATE INDEX deliveries_flight ON deliveries (recipient, priority DESC, id)
  WHERE outcome IS NULL AND delivered_at_ms IS NOT NULL;
-- Bus time never goes back, so the order of fetches is that of their times:
-- what is to be given out again is a prefix within each priority, and what was
-- given out again goes behind it.
CREATE INDEX deliveries_again ON deliveries (recipient, delivered_to, priority DESC, delivered_id, id)
  WHERE outcome IS NULL AND delivered_at_ms IS NOT NULL;
CREATE INDEX deliveries_message ON deliveries (recipient, message_id, id)
  WHERE outcome IS NULL AND delivered_at_ms IS NOT NULL;
-- For fetches of some topics: the same, and fresh ones in the order of a fetch.
CREATE INDEX deliveries_topic ON deliveries (recipient, topic, delivered_to, priority DESC, delivered_id, id)
  WHERE outcome IS NULL AND topic IS NOT NULL;
CREATE INDEX deliveries_expiry ON deliveries (expires_at_ms, id, recipient) WHERE outcome IS NULL;
-- For a redrive that is repeated.
CREATE INDEX deliveries_redriven ON deliveries (message_id, recipient, id) WHERE outcome IS NULL AND redriven_id IS NOT NULL;

-- What waits at a topic, on its way to the agent that it waited for, or at a
-- role that was closed, on its way to the dead letters; more than a step's worth
-- goes in several. The stretches of a source do not overlap.
CREATE TABLE inbox_moves (
  source   TEXT    NOT NULL,  -- topic:… or role:…
  after_id INTEGER NOT NULL,  -- messages.id after which …
  last_id  INTEGER NOT NULL,  -- … and up to which it goes
  agent    TEXT    NOT NULL,  -- whom to; '' to the dead letters
  at_ms    INTEGER NOT NULL,  -- since when
  PRIMARY KEY (source, after_id)
) STRICT, WITHOUT ROWID;

-- One row: all deliveries in numbers.
CREATE TABLE inbox_totals (
  n          INTEGER PRIMARY KEY CHECK (n = 1),
  deliveries INTEGER NOT NULL DEFAULT 0,  -- ever made
  delivered  INTEGER NOT NULL DEFAULT 0,  -- fetched at least once
  wait_ms    INTEGER NOT NULL DEFAULT 0,  -- sum over those, from queued_at_ms to the first fetch
  acked      INTEGER NOT NULL DEFAULT 0,
  dead       INTEGER NOT NULL DEFAULT 0   -- ever given up, redriven ones included
) STRICT;
INSERT INTO inbox_totals (n) VALUES (1);

-- Dead letters are looked up by message id too, and by row alone.
ALTER TABLE dead_letters ADD COLUMN message_id TEXT NOT NULL DEFAULT '';
UPDATE dead_letters SET message_id = coalesce((SELECT m.message_id FROM messages m WHERE m.id = dead_letters.id), '');
CREATE INDEX dead_letters_message ON dead_letters (message_id, recipient);
CREATE INDEX dead_letters_id ON dead_letters (id, recipient);

CREATE VIEW agents_iso AS
SELECT agent_id, cli, project_id, status, generation, delivery, topics, capabilities,
       strftime('%Y-%m-%dT%H:%M:%fZ', registered_at_ms / 1000.0, 'unixepoch') AS registered_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', last_seen_at_ms / 1000.0, 'unixepoch') AS last_seen_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', lease_expires_at_ms / 1000.0, 'unixepoch') AS lease_expires_at
  FROM agents;
CREATE VIEW deliveries_iso AS
SELECT id, recipient, topic, priority, attempts, message_id,
       CASE WHEN outcome IS NOT NULL THEN outcome WHEN delivered_at_ms IS NOT NULL THEN 'delivered' ELSE 'queued' END AS status,
       strftime('%Y-%m-%dT%H:%M:%fZ', queued_at_ms / 1000.0, 'unixepoch') AS queued_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', expires_at_ms / 1000.0, 'unixepoch') AS expires_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', delivered_at_ms / 1000.0, 'unixepoch') AS delivered_at, delivered_id, delivered_to,
       strftime('%Y-%m-%dT%H:%M:%fZ', outcome_at_ms / 1000.0, 'unixepoch') AS outcome_at, outcome_id, redriven_id
  FROM deliveries;
