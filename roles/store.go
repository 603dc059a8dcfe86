package roles

import (
	"database/sql"
	"errors"
	"fmt"

	"signalbox/step"
)

// Bounds of the tables.
const (
	maxRoles      = 10_000 // that are not closed
	maxCandidates = 1000   // with a row, a role
	pageSize      = 500    // names read at once
)

// store is what a step reads and writes of roles. There are two: the tables,
// and the maps of a test that runs many sequences.
type store interface {
	// Role is the role of the name; nil for none. A row that no rule can have
	// made is a *damagedRow.
	Role(name string) (*Role, error)
	PutRole(r *Role) error

	CountOpen() (int64, error)                                             // roles that are not closed
	Open(after string, limit int) ([]string, error)                        // names of those, sorted
	Vacant(projectID, after string, limit int) ([]string, error)           // of the project's that wait for a candidate
	HeldBy(agent string) ([]string, error)                                 // of those that the agent is reserved for or holds
	Candidate(role, agent string) (*Candidate, error)                      // nil for none
	PutCandidate(c *Candidate) error                                       //
	Candidates(role string, limit int) ([]Candidate, []*damagedRow, error) // the first by priority
	CountCandidates(role string) (int64, error)                            //
	Candidacies(agent string) ([]Candidate, error)                         // of all roles
	DropCandidates(role string) error                                      //
	Control() (Control, error)
	PutControl(c Control) error
}

// damagedRow is a row that cannot be used. It says so where it is met; the
// others go on.
type damagedRow struct {
	table, key string
	wire       string // its role_key_wire, by which lists go on
	err        error
}

func (d *damagedRow) Error() string {
	return fmt.Sprintf("row %s of %s is damaged: %v", d.key, d.table, d.err)
}
func (d *damagedRow) Unwrap() error { return d.err }

// asDamage is the damaged row that err is about, nil where it is about another
// thing.
func asDamage(err error) *damagedRow {
	var d *damagedRow
	if errors.As(err, &d) {
		return d
	}
	return nil
}

// tables is the store of the register.
type tables struct{ db step.DB }

const roleColumns = `name, project_id, role_kind, scope_id, role_key_wire, state, coalesce(holder_agent_id, ''),
	coalesce(previous_holder_agent_id, ''), epoch, activation_seq, coalesce(activation_id, ''),
	coalesce(activation_deadline_ms, 0), coalesce(activated_at_ms, 0), coalesce(holder_lease_expires_at_ms, 0), charter_version,
	coalesce(charter_acked_epoch, 0), retry_count, coalesce(next_probe_at_ms, 0), blocked_reason, coalesce(released_epoch, 0),
	coalesce(released_agent_id, ''), coalesce(released_reason, ''), last_transition_at_ms, last_reason, version`

const (
	selectRole = `SELECT ` + roleColumns + ` FROM roles WHERE name = ?`
	putRole    = `INSERT OR REPLACE INTO roles (name, project_id, role_kind, scope_id, role_key_wire, state, holder_agent_id,
	previous_holder_agent_id, epoch, activation_seq, activation_id, activation_deadline_ms, activated_at_ms,
	holder_lease_expires_at_ms, charter_version, charter_acked_epoch, retry_count, next_probe_at_ms, blocked_reason,
	released_epoch, released_agent_id, released_reason, last_transition_at_ms, last_reason, version, due_at_ms)
	VALUES (?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), ?, ?, nullif(?, ''), nullif(?, 0), nullif(?, 0), nullif(?, 0), ?,
	nullif(?, 0), ?, nullif(?, 0), ?, nullif(?, 0), nullif(?, ''), nullif(?, ''), ?, ?, ?, nullif(?, 0))`

	countOpen    = `SELECT count(*) FROM roles WHERE state <> 'closed'`
	selectOpen   = `SELECT name FROM roles WHERE state <> 'closed' AND name > ? ORDER BY name LIMIT ?`
	selectVacant = `SELECT name FROM roles WHERE state IN ('electable', 'unreachable', 'quarantined') AND project_id = ? AND name > ?
	ORDER BY name LIMIT ?`
	selectHeldBy = `SELECT name FROM roles WHERE holder_agent_id = ? ORDER BY name`
	selectActive = `SELECT name FROM roles WHERE holder_agent_id = ? AND state = 'active' ORDER BY name`
	selectDue    = `SELECT due_at_ms, name FROM roles WHERE due_at_ms <= ? ORDER BY due_at_ms, name LIMIT ?`
	selectStates = `SELECT state, count(*) FROM roles GROUP BY state`
)

// row is what a SELECT of roleColumns gives.
type row interface{ Scan(into ...any) error }

// scanRole reads a row; what is wrong with it comes back as a *damagedRow.
func scanRole(from row) (*Role, error) {
	var r Role
	var name, key string
	if err := from.Scan(&name, &r.ProjectID, &r.RoleKind, &r.ScopeID, &key, &r.State, &r.HolderAgentID, &r.PreviousHolderAgentID,
		&r.Epoch, &r.ActivationSeq, &r.ActivationID, &r.ActivationDeadlineMS, &r.ActivatedAtMS, &r.HolderLeaseExpiresAtMS,
		&r.CharterVersion, &r.CharterAckedEpoch, &r.RetryCount, &r.NextProbeAtMS, &r.BlockedReason, &r.ReleasedEpoch,
		&r.ReleasedAgentID, &r.ReleasedReason, &r.LastTransitionAtMS, &r.LastReason, &r.Version); err != nil {
		return nil, err
	}
	err := r.damage()
	switch {
	case err != nil:
	case name != r.Name():
		err = fmt.Errorf("its key is that of %s", r.Name())
	case key != r.Wire():
		err = fmt.Errorf("its role_key_wire is not that of its key")
	}
	if err != nil {
		return nil, &damagedRow{table: rolesTable, key: name, wire: key, err: err}
	}
	return &r, nil
}

// Role implements store.
func (t tables) Role(name string) (*Role, error) {
	r, err := scanRole(t.db.QueryRow(selectRole, name))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return r, err
}

// PutRole implements store.
func (t tables) PutRole(r *Role) error {
	_, err := t.db.Exec(putRole, r.Name(), r.ProjectID, r.RoleKind, r.ScopeID, r.Wire(), string(r.State), r.HolderAgentID,
		r.PreviousHolderAgentID, r.Epoch, r.ActivationSeq, r.ActivationID, r.ActivationDeadlineMS, r.ActivatedAtMS,
		r.HolderLeaseExpiresAtMS, r.CharterVersion, r.CharterAckedEpoch, r.RetryCount, r.NextProbeAtMS, r.BlockedReason,
		r.ReleasedEpoch, r.ReleasedAgentID, string(r.ReleasedReason), r.LastTransitionAtMS, string(r.LastReason), r.Version, r.dueAtMS())
	return err
}

// CountOpen implements store.
func (t tables) CountOpen() (n int64, err error) {
	err = t.db.QueryRow(countOpen).Scan(&n)
	return n, err
}

// Open implements store.
func (t tables) Open(after string, limit int) ([]string, error) {
	return t.names(selectOpen, after, limit)
}

// Vacant implements store.
func (t tables) Vacant(projectID, after string, limit int) ([]string, error) {
	return t.names(selectVacant, projectID, after, limit)
}

// HeldBy implements store.
func (t tables) HeldBy(agent string) ([]string, error) { return t.names(selectHeldBy, agent) }

// names reads names before anything else is done on the connection.
func (t tables) names(query string, args ...any) ([]string, error) {
	rows, err := t.db.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var n string
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		names = append(names, n)
	}
	return names, rows.Err()
}

// due are the deadlines at or before nowMS. It reads no more of a row than the
// deadline, so that a damaged one holds up no other.
func (t tables) due(nowMS int64, limit int) ([]step.Deadline, error) {
	rows, err := t.db.Query(selectDue, nowMS, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var due []step.Deadline
	for rows.Next() {
		var d step.Deadline
		if err := rows.Scan(&d.AtMS, &d.Key); err != nil {
			return nil, err
		}
		due = append(due, d)
	}
	return due, rows.Err()
}

// states counts the roles in each state.
func (t tables) states() (map[string]int64, error) {
	rows, err := t.db.Query(selectStates)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	count := map[string]int64{}
	for rows.Next() {
		var state string
		var n int64
		if err := rows.Scan(&state, &n); err != nil {
			return nil, err
		}
		count[state] = n
	}
	return count, rows.Err()
}
