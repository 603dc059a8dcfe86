package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// BridgeTables are the state tables of the bridge itself, which a replay makes
// again like those of the machines.
func BridgeTables() []string { return []string{"outcomes", "dead_letters"} }

// Snapshot keeps the state tables as they are before the next row is folded by
// the rules of the version. Its cost is that of copying the tables once.
func (b *Batch) Snapshot(rulesVersion string, tables []string) error {
	if err := b.Flush(); err != nil {
		return err
	}
	if _, err := b.r.Exec(`INSERT INTO snapshots (rules_version, next_id) VALUES (?, ?)`, rulesVersion, b.NextID()); err != nil {
		return err
	}
	for _, table := range append(BridgeTables(), tables...) {
		columns, err := b.columns(table)
		if err != nil {
			return err
		}
		pairs := make([]string, len(columns))
		for i, c := range columns {
			q := quoteName(c)
			pairs[i] = fmt.Sprintf("'%s', CASE typeof(%s) WHEN 'blob' THEN json_object('hex', hex(%s)) ELSE %s END",
				strings.ReplaceAll(c, "'", "''"), q, q, q)
		}
		_, err = b.r.conn.ExecContext(context.Background(), fmt.Sprintf(`INSERT INTO snapshot_rows (snapshot, table_name, n, row)
			SELECT (SELECT max(id) FROM snapshots), ?, row_number() OVER (ORDER BY %s), json_object(%s) FROM %s`,
			quoteName(columns[0]), strings.Join(pairs, ", "), quoteName(table)), table)
		if err != nil {
			return fmt.Errorf("snapshot of %s: %w", table, err)
		}
	}
	return nil
}

func (b *Batch) columns(table string) ([]string, error) {
	rows, err := b.r.Query(`SELECT name FROM pragma_table_info(?) ORDER BY pk = 0, pk, cid`, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var columns []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		columns = append(columns, name)
	}
	if len(columns) == 0 {
		return nil, fmt.Errorf("snapshot: there is no table %s", table)
	}
	return slices.Clip(columns), rows.Err()
}

func quoteName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
