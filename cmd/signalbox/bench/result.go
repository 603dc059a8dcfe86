package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Result is what a run found. A figure that was not measured is null. Rates are
// a second.
type Result struct {
	Messages        int      `json:"messages"` // of the capture, and of each ceiling
	Publishers      int      `json:"publishers"`
	Size            int      `json:"size"`           // bytes of a body
	Lost            *int     `json:"lost"`           // of all but the burst
	Doubled         *int     `json:"doubled"`        // of all
	CapturePerS     *float64 `json:"capture_per_s"`  // rows
	CeilingPerS     *float64 `json:"ceiling_per_s"`  // rows; the mean of both
	CeilingBefore   *float64 `json:"ceiling_before"` // rows, before the capture
	CeilingAfter    *float64 `json:"ceiling_after"`  // rows, after it
	Ratio           *float64 `json:"ratio"`          // capture to ceiling
	IndexLagS       *float64 `json:"index_lag_s"`
	LivePerS        *float64 `json:"live_per_s"`       // rows without deliveries, beside those with
	DeliveriesPerS  *float64 `json:"deliveries_per_s"` // rows with a delivery each
	DeliveriesRatio *float64 `json:"deliveries_ratio"` // the second to the first
	LagP50MS        *float64 `json:"lag_p50_ms"`
	LagP99MS        *float64 `json:"lag_p99_ms"`
	LagPerS         *float64 `json:"lag_per_s"` // messages, while the lag was measured
	BurstMessages   *int     `json:"burst_messages"`
	BurstLost       *int     `json:"burst_lost"`
	APIP50MS        *float64 `json:"api_p50_ms"`
	APIP99MS        *float64 `json:"api_p99_ms"`
	FetchP50MS      *float64 `json:"fetch_p50_ms"` // of 100 messages out of 100,000
	FetchP99MS      *float64 `json:"fetch_p99_ms"`
	ExpiryDelayMS   *float64 `json:"expiry_delay_ms"`  // the longest request while 10,000 messages expire
	JobsPerS        *float64 `json:"jobs_per_s"`       // whole lives, with live agents
	JobsInboxPerS   *float64 `json:"jobs_inbox_per_s"` // whole lives, through inboxes
	JobsDelayMS     *float64 `json:"jobs_delay_ms"`    // the longest request while 1,000 of 100,000 jobs are due
	DBBytesPerMsg   *float64 `json:"db_bytes_per_msg"`
	RSSMiB          *float64 `json:"rss_mib"`
	RSSPeakMiB      *float64 `json:"rss_peak_mib"`
	RSSMessages     *int64   `json:"rss_messages"` // in the register at that moment
	Machine         Machine  `json:"machine"`
}

// compare sets the ceiling, the mean of both, and the ratio.
func (r *Result) compare() {
	if r.CeilingBefore == nil || r.CeilingAfter == nil {
		return
	}
	r.CeilingPerS = ptr((*r.CeilingBefore + *r.CeilingAfter) / 2)
	if r.CapturePerS != nil {
		r.Ratio = ptr(*r.CapturePerS / *r.CeilingPerS)
	}
}

// Machine is what the run was on.
type Machine struct {
	Cores      int    `json:"cores"`
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	Signalbox  string `json:"signalbox"`
	Go         string `json:"go"`
	NATSServer string `json:"nats_server"`
	SQLite     string `json:"sqlite"`
}

// Figure is a measured figure beside its target.
type Figure struct {
	Name     string
	Measured string
	Target   string // "" for none
	Met      bool
}

// Figures are those that were measured.
func (r *Result) Figures() []Figure {
	var list []Figure
	add := func(name string, v *float64, format, target string, met func(float64) bool) {
		if v != nil {
			list = append(list, Figure{name, fmt.Sprintf(format, *v), target, met == nil || met(*v)})
		}
	}
	count := func(name string, v *int) {
		if v != nil {
			list = append(list, Figure{name, fmt.Sprint(*v), "0", *v == 0})
		}
	}
	below := func(limit float64) func(float64) bool { return func(v float64) bool { return v < limit } }
	add("ceiling before", r.CeilingBefore, "%.0f rows/s", "", nil)
	add("ceiling after", r.CeilingAfter, "%.0f rows/s", "", nil)
	add("ceiling", r.CeilingPerS, "%.0f rows/s", "", nil)
	add("capture", r.CapturePerS, "%.0f rows/s", "", nil)
	add("capture / ceiling", r.Ratio, "%.2f ×", "≥ 0.50 ×", func(v float64) bool { return v >= 0.5 })
	add("look-ups caught up after", r.IndexLagS, "%.2f s", "≤ 2 s", func(v float64) bool { return v <= 2 })
	add("capture without deliveries", r.LivePerS, "%.0f rows/s", "", nil)
	add("capture with deliveries", r.DeliveriesPerS, "%.0f rows/s", "", nil)
	add("with / without", r.DeliveriesRatio, "%.2f ×", "≥ 0.75 ×", func(v float64) bool { return v >= 0.75 })
	count("lost", r.Lost)
	count("doubled", r.Doubled)
	add("lag p50", r.LagP50MS, "%.1f ms", "", nil)
	add("lag p99", r.LagP99MS, "%.1f ms", "< 100 ms", below(100))
	if r.LagPerS != nil {
		add("  at", r.LagPerS, "%.0f messages/s", "", nil)
	}
	if r.BurstMessages != nil {
		count(fmt.Sprintf("lost of a burst of %d", *r.BurstMessages), r.BurstLost)
	}
	add("message.send p50", r.APIP50MS, "%.2f ms", "< 5 ms", below(5))
	add("message.send p99", r.APIP99MS, "%.2f ms", "", nil)
	add("fetch of 100 out of 100000, p50", r.FetchP50MS, "%.1f ms", "< 20 ms", below(20))
	add("fetch of 100 out of 100000, p99", r.FetchP99MS, "%.1f ms", "", nil)
	add("slowest request while 10000 expire", r.ExpiryDelayMS, "%.0f ms", "< 200 ms", below(200))
	add("jobs with live agents", r.JobsPerS, "%.0f lives/s", "≥ 1500", func(v float64) bool { return v >= 1500 })
	add("jobs through inboxes", r.JobsInboxPerS, "%.0f lives/s", "≥ 800", func(v float64) bool { return v >= 800 })
	add("slowest request while 1000 jobs are due", r.JobsDelayMS, "%.0f ms", "< 200 ms", below(200))
	if r.RSSMessages != nil {
		add(fmt.Sprintf("memory after %d messages", *r.RSSMessages), r.RSSMiB, "%.0f MiB", "< 300 MiB", below(300))
	}
	add("memory at its most", r.RSSPeakMiB, "%.0f MiB", "", nil)
	add("register", r.DBBytesPerMsg, "%.0f B/message", "", nil)
	return list
}

// Missed are the figures that miss their target.
func (r *Result) Missed() []Figure {
	var missed []Figure
	for _, f := range r.Figures() {
		if !f.Met {
			missed = append(missed, f)
		}
	}
	return missed
}

// Table writes the figures for people.
func (r *Result) Table(out io.Writer) error {
	m := r.Machine
	if _, err := fmt.Fprintf(out, "%d messages of %d B from %d publisher(s); %d cores, %s/%s; signalbox %s, nats-server %s, SQLite %s, %s\n\n",
		r.Messages, r.Size, r.Publishers, m.Cores, m.OS, m.Arch, m.Signalbox, m.NATSServer, m.SQLite, m.Go); err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if _, err := fmt.Fprintln(w, "FIGURE\tMEASURED\tTARGET\t"); err != nil {
		return err
	}
	for _, f := range r.Figures() {
		verdict := ""
		switch {
		case f.Target == "":
		case f.Met:
			verdict = "met"
		default:
			verdict = "MISSED"
		}
		if _, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Name, f.Measured, f.Target, verdict); err != nil {
			return err
		}
	}
	return w.Flush()
}
