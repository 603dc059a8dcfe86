package bridge

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox/audit"
	"signalbox/wire"
)

// metrics are the bridge's counters and gauges.
type metrics struct {
	registered      *prometheus.CounterVec
	batchRows       prometheus.Histogram
	commitSeconds   prometheus.Histogram
	lagSeconds      prometheus.Histogram
	refusals        *prometheus.CounterVec
	faults          prometheus.Counter
	retries         prometheus.Counter
	publishFailures prometheus.Counter
	replyFailures   prometheus.Counter
	unwatched       prometheus.Counter
	untold          prometheus.Counter
	rereads         prometheus.Counter
	unasked         prometheus.Counter
	beatsDropped    prometheus.Counter
	agents, jobs    *prometheus.GaugeVec
	beatsLost       func() (int, error) // by the connection; nil before it listens
	all             []prometheus.Collector
}

func newMetrics(b *Bridge) *metrics {
	m := &metrics{
		registered: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_messages_registered_total",
			Help: "Messages written to the register, by kind."}, []string{"kind"}),
		batchRows: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_batch_rows",
			Help: "Rows in a transaction.", Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}}),
		commitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_commit_seconds",
			Help: "Time from the begin of a transaction to its fsync.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		lagSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_lag_seconds",
			Help: "Time from the log's timestamp of a batch's oldest message to its commit.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_refusals_total",
			Help: "Messages, commands and requests refused, by code."}, []string{"code"}),
		faults:          counter("signalbox_machine_faults_total", "Steps undone because a machine failed."),
		retries:         counter("signalbox_commit_retries_total", "Transactions that the register did not take."),
		publishFailures: counter("signalbox_outbox_failures_total", "Attempts to publish the outbox that failed."),
		replyFailures:   counter("signalbox_reply_failures_total", "Replies that were not sent."),
		unwatched:       counter("signalbox_unwatched_appends_total", "Commands whose PubAck nobody waited for: the queue was full."),
		rereads:         counter("signalbox_reader_restarts_total", "Times that a log was checked and read on because its reader ended by itself."),
		unasked:         counter("signalbox_unasked_questions_total", "Questions to agents that were not asked: the queue was full."),
		beatsDropped:    counter("signalbox_heartbeats_dropped_total", "Heartbeats that were not counted: too many agents beat at once."),
		untold:          counter("signalbox_untold_observations_total", "Observations that were not put into the log: the queue was full."),
	}
	m.all = []prometheus.Collector{m.registered, m.batchRows, m.commitSeconds, m.lagSeconds, m.refusals, m.faults, m.retries,
		m.publishFailures, m.replyFailures, m.unwatched, m.untold, m.rereads, m.unasked, m.beatsDropped}
	state := func(name, help, label string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label})
		m.all = append(m.all, v)
		return v
	}
	m.agents = state("signalbox_agents", "Agents by status.", "status")
	m.jobs = state("signalbox_jobs", "Jobs by status.", "status")
	gauge := func(name, help string, value func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	gauge("signalbox_register_rows", "Rows in the register.", func() float64 { return float64(b.rows.Load()) })
	gauge("signalbox_stream_position", "Sequence number of the log that has been folded.", func() float64 { return float64(b.position.now()) })
	gauge("signalbox_stream_last", "Last sequence number of the log, as last looked at.", func() float64 { return float64(b.streamLast.Load()) })
	gauge("signalbox_backlog_messages", "Messages in the log that are not folded yet.", func() float64 { return float64(b.lag().messages) })
	gauge("signalbox_outbox_depth", "Events and messages that have not come back through the log.", func() float64 { return float64(b.outboxLast.Load() - b.outboxSeen.Load()) })
	gauge("signalbox_requests_waiting", "Requests that wait for their outcome.", func() float64 { return float64(b.waiters.waiting()) })
	gauge("signalbox_fetches_waiting", "Requests that wait until there is something for them.", func() float64 { return float64(b.polls.waiting()) })
	gauge("signalbox_heartbeats_lost", "Heartbeats that came faster than they were looked at.", func() float64 {
		if m.beatsLost == nil {
			return 0
		}
		n, _ := m.beatsLost() // an error means that it listens no more
		return float64(n)
	})
	gauge("signalbox_disk_free_bytes", "Free space where the data is.", func() float64 { return float64(b.diskFree.Load()) })
	gauge("signalbox_wal_bytes", "Size of the register's write-ahead log.", func() float64 { return float64(b.walBytes.Load()) })
	gauge("signalbox_gaps", "Gap records in the register.", func() float64 { return float64(b.gaps.Load()) })
	gauge("signalbox_dead_letters", "Dead letters in the register.", func() float64 { return float64(b.dead.Load()) })
	gauge("signalbox_red_parts", "Parts of the bridge that are not healthy.", func() float64 { return float64(len(b.health.Red())) })
	if b.index != nil {
		gauge("signalbox_index_lag_rows", "Rows that look-ups by id have to scan.", func() float64 { refs, _ := b.index.Lag(); return float64(refs) })
		gauge("signalbox_search_lag_rows", "Rows that a full-text search has to scan.", func() float64 { _, s := b.index.Lag(); return float64(s) })
	}
	return m
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (m *metrics) refused(code wire.Code) { m.refusals.WithLabelValues(string(code)).Inc() }

// committed counts a batch.
func (m *metrics) committed(rows []*audit.Row, out *folded, took time.Duration) {
	var kinds [4]float64
	names := [4]wire.Kind{wire.Msg, wire.Cmd, wire.Evt, wire.Tap}
	for _, r := range rows {
		for i, k := range names {
			if r.Kind == k {
				kinds[i]++
			}
		}
	}
	for i, k := range names {
		if kinds[i] > 0 {
			m.registered.WithLabelValues(string(k)).Add(kinds[i])
		}
	}
	m.batchRows.Observe(float64(len(rows)))
	m.commitSeconds.Observe(took.Seconds())
	m.lagSeconds.Observe(time.Since(rows[0].At()).Seconds())
	for _, code := range out.refusals {
		m.refused(code)
	}
	m.faults.Add(float64(out.faults))
}
