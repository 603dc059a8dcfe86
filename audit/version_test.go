package audit

import "testing"

func TestAnOldSQLiteIsRefused(t *testing.T) {
	for version, old := range map[string]bool{
		"3.51.2": true, "3.51.3": false, "3.54.1": false, "3.9.9": true, "4.0.0": false, "3.51": true, "": true,
	} {
		if olderVersion(version, minVersion) != old {
			t.Errorf("%q counts as older: %v, want %v", version, !old, old)
		}
	}
}
