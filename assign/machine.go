package assign

import (
	"fmt"

	"signalbox/step"
	"signalbox/wire"
)

const machineName = "assign"

// Verbs of the machine.
const (
	verbCreate    = "create"
	verbClaim     = "claim"
	verbReport    = "report"
	verbHeartbeat = "heartbeat"
	verbRetry     = "retry"
	verbCancel    = "cancel"
)

// Machine is the machine of jobs. Each step reads the one job that it is about,
// and writes it. The loop alone calls it, except the queries, Count and
// Attempts, which read the tables only.
type Machine struct{ recent recent }

// New makes the machine.
func New() *Machine { return &Machine{recent: recent{}} }

// Name implements the machine's interface.
func (*Machine) Name() string { return machineName }

// Verbs implements the machine's interface.
func (*Machine) Verbs() []string {
	return []string{verbCreate, verbClaim, verbReport, verbHeartbeat, verbRetry, verbCancel}
}

// Tables implements the machine's interface.
func (*Machine) Tables() []string { return []string{"jobs", "job_tasks", "attempts"} }

// Due implements the machine's interface: jobs to be dispatched, and ends of
// deadlines and leases. It reads an index only, so a damaged row hides no other.
func (*Machine) Due(db step.DB, nowMS int64, limit int) ([]step.Deadline, error) {
	list, err := due(db, nowMS, limit)
	if err != nil {
		return nil, fmt.Errorf("the deadlines of jobs: %w", err)
	}
	return list, nil
}

// Hears implements the bridge's listener.
func (*Machine) Hears(machine, what string) bool {
	return machine == step.Bridge && what == step.Started
}

// Apply decides what happens. A refusal comes before anything is written.
func (m *Machine) Apply(db step.DB, in step.Input) (step.Effects, error) {
	return apply(remembered{tables{db}, m.recent}, in)
}

// shelf is where jobs are kept.
type shelf interface {
	// job is a job by its id, nil if there is none. A row that cannot be read
	// is an error that names it.
	job(id string) (*Job, error)

	// known says whether there is such a job, readable or not: cheaper than job,
	// where mostly there is none.
	known(id string) (bool, error)

	// attempt is an attempt of the job that has ended, nil if there is none.
	attempt(j *Job, n int64) (*Attempt, error)

	// liveWith is the live job of the supervisor with the dedup_key, nil if
	// there is none. There is never more than one.
	liveWith(supervisor, key string) (*Job, error)

	// keep stores what a decision has changed.
	keep(d *Decision) error

	// restart does to every job what Restart says.
	restart(nowMS, lastMS int64) error
}

func apply(s shelf, in step.Input) (step.Effects, error) {
	switch e := in.Event.(type) {
	case step.Deadline:
		return over(s, in, e.Key)
	case step.Notice:
		if start, ok := e.Data.(step.Start); ok {
			return step.Effects{}, s.restart(in.NowMS, start.LastMS)
		}
	case step.Command:
		switch e.Verb {
		case verbCreate:
			return create(s, in, e.Body)
		case verbClaim:
			return claim(s, in, e.Body)
		case verbReport:
			return report(s, in, e.Body)
		case verbHeartbeat:
			return heartbeat(s, in, e.Body)
		case verbRetry:
			return retry(s, in, e.Body)
		case verbCancel:
			return cancel(s, in, e.Body)
		}
	}
	return step.Effects{}, fmt.Errorf("assign got a %T that it does not hear", in.Event)
}

// carryOut stores a decision, or passes a refusal on with what may follow it.
func carryOut(s shelf, d Decision, refusal *wire.Error) (step.Effects, error) {
	if refusal != nil {
		return step.Effects{Messages: d.Effects.Messages}, refusal
	}
	if d.Changed || d.Beat {
		if err := s.keep(&d); err != nil {
			return step.Effects{}, fmt.Errorf("write job %q: %w", d.Job.JobID, err)
		}
	}
	return d.Effects, nil
}

func over(s shelf, in step.Input, id string) (step.Effects, error) {
	settings, err := readSettings(in.Settings)
	if err != nil {
		return step.Effects{}, err
	}
	j, err := s.job(id)
	if err != nil || j == nil {
		return step.Effects{}, err
	}
	return carryOut(s, Expire(*j, settings, in), nil)
}
