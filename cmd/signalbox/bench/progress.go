package bench

import (
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar shows how far a phase is; without a terminal it does nothing.
type bar struct{ shown *progressbar.ProgressBar }

func (r *run) bar(name string, count int) *bar {
	if r.options.Progress == nil {
		return &bar{}
	}
	return &bar{progressbar.NewOptions(count, progressbar.OptionSetDescription(name), progressbar.OptionSetWriter(r.options.Progress),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())}
}

// A bar that cannot be drawn does not matter.
func (b *bar) add(n int) {
	if b.shown != nil {
		_ = b.shown.Add(n)
	}
}

func (b *bar) set(n int) {
	if b.shown != nil {
		_ = b.shown.Set(n)
	}
}

func (b *bar) end() {
	if b.shown != nil {
		_ = b.shown.Finish()
	}
}
