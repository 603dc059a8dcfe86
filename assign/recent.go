package assign

import (
	"signalbox/step"
)

// Bounds of what is remembered: so many jobs, none with more than so many bytes
// of JSON.
const (
	maxRecent      = 4096
	maxRecentBytes = 2 << 10
)

// recent remembers live jobs as their rows have them: reading a row costs as
// much as deciding and writing together, and most jobs are asked for again soon.
// Everything is written at once, so forgetting loses nothing.
type recent map[string]Job

// remembered is the shelf in the register with what is remembered of it.
type remembered struct {
	tables
	recent recent
}

func (r remembered) job(id string) (*Job, error) {
	if j, ok := r.recent[id]; ok {
		return &j, nil
	}
	j, err := r.tables.job(id)
	if j != nil {
		r.recent.note(j)
	}
	return j, err
}

func (r remembered) keep(d *Decision) error {
	if err := r.tables.keep(d); err != nil {
		return err
	}
	r.recent.note(&d.Job)
	return nil
}

func (r remembered) restart(nowMS, lastMS int64) error {
	clear(r.recent)
	return r.tables.restart(nowMS, lastMS)
}

// note remembers a job in place of what it was. When there is no more room,
// everything older goes.
func (r recent) note(j *Job) {
	if !j.Status.Live() || len(j.Task)+len(j.Payload) > maxRecentBytes {
		delete(r, j.JobID)
		return
	}
	if len(r) >= maxRecent {
		clear(r)
	}
	r[j.JobID] = *j
}

// Flush implements the bridge's keeper of memory: nothing waits to be written.
func (*Machine) Flush(step.DB) error { return nil }

// Forget drops what is remembered, because the tables have gone back.
func (m *Machine) Forget() { clear(m.recent) }
