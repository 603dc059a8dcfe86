-- The tables of the machine roles. Instants are milliseconds of bus time.

-- +goose Up

-- Who may speak for what: one row a role. A closed one stays with its last
-- epoch, so that no epoch of it ever counts again.
CREATE TABLE roles (
  name                       TEXT    PRIMARY KEY,  -- project/kind or project/kind/scope
  project_id                 TEXT    NOT NULL,     -- prj_…
  role_kind                  TEXT    NOT NULL,
  scope_id                   TEXT    NOT NULL,     -- scp_…; '' for none
  role_key_wire              TEXT    NOT NULL UNIQUE,  -- rk2.…
  state                      TEXT    NOT NULL,     -- electable, elected-probing, active, unreachable, quarantined, closed
  holder_agent_id            TEXT,                 -- reserved (elected-probing) or active
  previous_holder_agent_id   TEXT,
  epoch                      INTEGER NOT NULL,     -- never falls
  activation_seq             INTEGER NOT NULL,     -- rises with epoch
  activation_id              TEXT,                 -- UUIDv7, of the holder's activation
  activation_deadline_ms     INTEGER,              -- until when it must be acknowledged
  activated_at_ms            INTEGER,              -- when it was sent to the holder
  holder_lease_expires_at_ms INTEGER,              -- as it was at the reservation or ack; the agent's own row moves on
  charter_version            TEXT    NOT NULL,     -- that the holder must acknowledge; '' for none
  charter_acked_epoch        INTEGER,              -- at which it has
  retry_count                INTEGER NOT NULL,     -- failures since it was last active
  next_probe_at_ms           INTEGER,              -- when candidates are looked at again
  blocked_reason             TEXT    NOT NULL,     -- no_candidate, candidates_excluded, retries_exhausted, manager_disabled, ''
  released_epoch             INTEGER,              -- that the last resign or revoke ended; NULL once it is active again
  released_agent_id          TEXT,                 -- who held it then
  released_reason            TEXT,                 -- resigned, revoked
  last_transition_at_ms      INTEGER NOT NULL,
  last_reason                TEXT    NOT NULL,     -- trigger of the last transition; of the first ensure before
  version                    INTEGER NOT NULL,     -- transitions so far
  due_at_ms                  INTEGER               -- when a tick must look at it: the deadline of the activation, or next_probe
) STRICT, WITHOUT ROWID;
CREATE INDEX roles_open ON roles (name) WHERE state <> 'closed';
CREATE INDEX roles_vacant ON roles (project_id, name) WHERE state IN ('electable', 'unreachable', 'quarantined');
CREATE INDEX roles_holder ON roles (holder_agent_id, name) WHERE holder_agent_id IS NOT NULL;
CREATE INDEX roles_due ON roles (due_at_ms, name) WHERE due_at_ms IS NOT NULL;

-- What must be remembered of candidates. An agent that is one by its
-- capability alone has no row until then.
CREATE TABLE roles_candidates (
  role                       TEXT    NOT NULL,  -- roles.name; the role itself may not be asked for yet
  agent_id                   TEXT    NOT NULL,
  source                     TEXT    NOT NULL,  -- grant (its capability), standup (itself), operator
  priority                   INTEGER NOT NULL,  -- the highest is elected first
  locators                   TEXT    NOT NULL,  -- JSON array: how it is reached
  consecutive_probe_failures INTEGER NOT NULL,  -- of probe or ack
  excluded_until_ms          INTEGER,           -- not elected before
  excluded_reason            TEXT    NOT NULL,  -- probe_failed, ack_timeout, resigned, revoked, ''
  last_probe_at_ms           INTEGER,
  last_probe_code            TEXT    NOT NULL,  -- reachable, acked, probe_failed, ack_timeout, resigned, ''
  capable                    INTEGER NOT NULL,  -- 1: it had the capability when last looked at
  withdrawn                  INTEGER NOT NULL,  -- 1: no candidate until it is made one again
  updated_at_ms              INTEGER NOT NULL,  -- of the candidacy, or the agent's last registration
  PRIMARY KEY (role, agent_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX roles_candidates_agent ON roles_candidates (agent_id, role);

-- One row, or none as long as nothing was ever set: switches and charters for
-- all roles.
CREATE TABLE roles_control (
  n              INTEGER PRIMARY KEY CHECK (n = 1),
  master_enabled INTEGER NOT NULL,  -- 0: no elections at all
  generation     INTEGER NOT NULL,  -- rises with each change of a switch
  kinds          TEXT    NOT NULL,  -- JSON object: false for each kind that is off
  charters       TEXT    NOT NULL,  -- JSON object by kind: {version, configured}, as issued by command
  raised         INTEGER NOT NULL   -- sum of all raises after gaps of the log: where new epochs start
) STRICT;

CREATE VIEW roles_iso AS
SELECT name, state, holder_agent_id, previous_holder_agent_id, epoch, activation_id, charter_version, retry_count, blocked_reason,
       last_reason, version,
       strftime('%Y-%m-%dT%H:%M:%fZ', activation_deadline_ms / 1000.0, 'unixepoch') AS activation_deadline,
       strftime('%Y-%m-%dT%H:%M:%fZ', next_probe_at_ms / 1000.0, 'unixepoch') AS next_probe_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', last_transition_at_ms / 1000.0, 'unixepoch') AS last_transition_at
  FROM roles;
CREATE VIEW roles_candidates_iso AS
SELECT role, agent_id, source, priority, locators, consecutive_probe_failures, excluded_reason, last_probe_code, withdrawn,
       strftime('%Y-%m-%dT%H:%M:%fZ', excluded_until_ms / 1000.0, 'unixepoch') AS excluded_until,
       strftime('%Y-%m-%dT%H:%M:%fZ', last_probe_at_ms / 1000.0, 'unixepoch') AS last_probe_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', updated_at_ms / 1000.0, 'unixepoch') AS updated_at
  FROM roles_candidates;
