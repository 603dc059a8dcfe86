package agents

import (
	"fmt"
	"time"

	"signalbox/step"
)

// Bounds of a heartbeat_ttl_ms. It must also be at least three roll-ups, so
// that two lost ones end no lease.
const (
	minTTL  = time.Second
	maxTTL  = time.Hour
	rollups = 3
)

// Settings are the settings that the rules use, in milliseconds.
type Settings struct {
	HeartbeatTTLMS int64 `json:"heartbeat_ttl_ms"` // where a registration names none
	RollupMS       int64 `json:"rollup_ms"`        // between two roll-ups of heartbeats
	OfflineAfterMS int64 `json:"offline_after_ms"` // from stale to offline
}

// defaults are what holds before a start has said anything else.
var defaults = Settings{
	HeartbeatTTLMS: (30 * time.Second).Milliseconds(),
	RollupMS:       (5 * time.Second).Milliseconds(),
	OfflineAfterMS: (5 * time.Minute).Milliseconds(),
}

// readSettings reads the settings of the last start; what is missing, or not
// above 0, is the default.
func readSettings(in step.Settings) (Settings, error) {
	var s Settings
	if err := in.Read("agents", &s); err != nil {
		return s, fmt.Errorf("the settings of agents: %w", err)
	}
	for _, v := range []struct{ value, otherwise *int64 }{
		{&s.HeartbeatTTLMS, &defaults.HeartbeatTTLMS}, {&s.RollupMS, &defaults.RollupMS}, {&s.OfflineAfterMS, &defaults.OfflineAfterMS},
	} {
		if *v.value <= 0 {
			*v.value = *v.otherwise
		}
	}
	return s, nil
}

// ttlBounds are the least and the greatest heartbeat_ttl_ms.
func (s Settings) ttlBounds() (least, most int64) {
	most = maxTTL.Milliseconds()
	return max(minTTL.Milliseconds(), rollups*min(s.RollupMS, most/rollups)), most
}

// defaultTTL is the heartbeat_ttl_ms of a registration that names none.
func (s Settings) defaultTTL() int64 {
	least, most := s.ttlBounds()
	return min(max(s.HeartbeatTTLMS, least), most)
}
