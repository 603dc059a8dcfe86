package bridge

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// What nats-server 2.15 says of a pull request (consumer.go).
func TestWhatTheServerSaysOfAPullRequest(t *testing.T) {
	for _, c := range []struct {
		status, text, left string
		unmet              int
		ended              bool
	}{
		{"100", "Idle Heartbeat", "", 0, false},
		{"408", "Request Timeout", "17", 17, false},
		{"409", "Message Size Exceeds MaxBytes", "9", 9, false},
		{"409", "Batch Completed", "0", 0, false},
		{"409", "Server Shutdown", "5", 0, true},
		{"409", "Consumer Deleted", "", 0, true},
		{"409", "Leadership Change", "", 0, true},
		{"503", "", "", 0, true},
		{"408", "Request Timeout", "many", 0, true},
	} {
		h := nats.Header{"Status": {c.status}, "Description": {c.text}}
		if c.left != "" {
			h.Set("Nats-Pending-Messages", c.left)
		}
		unmet, err := pullEnded(h)
		if unmet != c.unmet || (err != nil) != c.ended {
			t.Errorf("%s %s %s: %d, %v; want %d, an end: %v", c.status, c.text, c.left, unmet, err, c.unmet, c.ended)
		}
	}
}
