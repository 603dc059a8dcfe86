package main

import (
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Times of the progress indicator.
const (
	spinAfter = 400 * time.Millisecond // what is quicker needs none
	spinEvery = 100 * time.Millisecond
)

// spin shows on stderr, where that is a terminal, that something goes on, until
// stop is called. stop may be called more than once.
func (a *app) spin(what string) (stop func()) {
	f, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func() {}
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		wait := time.NewTimer(spinAfter)
		defer wait.Stop()
		select {
		case <-end:
			return
		case <-wait.C:
		}
		bar := progressbar.NewOptions(-1, progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what),
			progressbar.OptionSpinnerType(14), progressbar.OptionClearOnFinish())
		tick := time.NewTicker(spinEvery)
		defer tick.Stop()
		for {
			_ = bar.Add(1) // an indicator that cannot be drawn is left out
			select {
			case <-end:
				_ = bar.Finish()
				return
			case <-tick.C:
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(end)
		<-done
	})
}
