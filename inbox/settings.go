package inbox

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"signalbox/step"
)

// listingBytes is how large the reply to a query may be: as large as that of a
// fetch, as the last commit has the settings.
func listingBytes(db step.DB) (int, error) {
	var raw string
	switch err := db.QueryRow(`SELECT settings FROM bridge_state`).Scan(&raw); {
	case errors.Is(err, sql.ErrNoRows):
		return maxReply, nil
	case err != nil:
		return 0, fmt.Errorf("read the settings: %w", err)
	}
	var settings step.Settings
	if err := json.Unmarshal([]byte(raw), &settings); err != nil {
		return 0, fmt.Errorf("read the settings: %w", err)
	}
	return replyBytes(settings)
}
