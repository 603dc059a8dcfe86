//go:build e2e

package e2e

import (
	"testing"
	"time"
)

// until asks again and again until ask has no complaint, for at most within;
// the story then fails with the last complaint.
func until(t *testing.T, within time.Duration, what string, ask func() error) {
	t.Helper()
	if err := poll(within, ask); err != nil {
		t.Fatalf("waited %s until %s: %v", within, what, err)
	}
}

func poll(within time.Duration, ask func() error) error {
	deadline := time.Now().Add(within)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-tick.C
	}
}

// lasts lets a state that the story has made go on for d, and asks all the time
// that it is as it must be.
func lasts(t *testing.T, d time.Duration, what string, ask func() error) {
	t.Helper()
	over := time.NewTimer(d)
	defer over.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := ask(); err != nil {
			t.Fatalf("while %s: %v", what, err)
		}
		select {
		case <-over.C:
			return
		case <-tick.C:
		}
	}
}
