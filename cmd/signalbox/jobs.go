package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"signalbox/assign"
	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/cmd/signalbox/listing"
	"signalbox/wire"
)

func (a *app) jobsCommand() *cobra.Command {
	a.as = defaultSender
	cmd := a.list(machineList{
		use: "jobs", short: "List jobs, the last changed first", args: noArgs,
		long:  "List jobs with what the register knew of them at its last row, the last changed first.",
		query: assign.New().Queries()["list"], records: "jobs", limit: 50, most: 100,
		fields: []field{
			{name: "job_id", title: "JOB", min: 8}, {name: "status", title: "STATUS", whole: true}, {name: "attempt", title: "ATTEMPT", number: true},
			{name: "supervisor_agent", title: "SUPERVISOR", min: 5}, {name: "worker_agent", title: "WORKER", min: 5}, {name: "worker_topic", title: "OFFERED TO", min: 5},
			{name: "priority", title: "PRIO", number: true}, {name: "deadline_ms", title: "DEADLINE", show: timeLeft, number: true},
			{name: "updated_at_ms", title: "CHANGED", show: localTime}, {name: "task", title: "TASK", min: 8},
			{name: "retry_count"}, {name: "max_retries"}, {name: "trace_id"}, {name: "correlation_id"}, {name: "created_at_ms"}, {name: "started_at_ms"},
			{name: "completed_at_ms"}, {name: "result"}, {name: "error"},
		},
		filters: []filter{
			{flag: "status", field: "statuses", kind: listFlag, usage: "only these, with commas: queued, running, succeeded, failed, timed_out, cancelled"},
			{flag: "worker", field: "worker_agent", usage: "only those of the worker"},
			{flag: "supervisor", field: "supervisor_agent", usage: "only those of the supervisor"},
			{flag: "trace", field: "trace_id", usage: "only those with the trace id"},
			{flag: "correlation", field: "correlation_id", usage: "only those with the correlation id"},
		},
	})
	cmd.AddCommand(
		a.showJobCommand(),
		a.verb(machineVerb{use: "create TASK", short: "Create a job, supervised by the agent that --as names", machine: "assign", verb: "create",
			long: "Create a job for --worker, or offer it to --topic. TASK is JSON, or any text.",
			args: []argument{{name: "TASK", field: "task", kind: jsonFlag}},
			flags: []filter{
				{flag: "worker", field: "worker_agent", usage: "the agent that is to do it"},
				{flag: "offer", field: "worker_topic", usage: "a topic: the first of its agents that claims it does it"},
				{flag: "job-id", field: "job_id", usage: "its id (default: a new one)"},
				{flag: "payload", field: "payload", kind: jsonFlag, usage: "what the worker needs, JSON or any text"},
				{flag: "max-retries", field: "max_retries", kind: numberFlag, usage: "how often it is tried again, up to 20"},
				{flag: "priority", field: "priority", kind: numberFlag, usage: "1 to 9 (default 5)"},
				{flag: "timeout-job", field: "timeout_ms", kind: durationFlag, usage: "how long it may wait, and then how long it may run (default 10m)"},
				{flag: "lease", field: "lease_ms", kind: durationFlag, usage: "how long it may run without a sign of life"},
				{flag: "dedup", field: "dedup_key", usage: "while a live job has this key, that one is meant"},
			}}),
		a.verb(machineVerb{use: "claim JOB", short: "Claim a job that is offered", machine: "assign", verb: "claim",
			args: []argument{{name: "JOB", field: "job_id"}}}),
		a.verb(machineVerb{use: "report JOB ATTEMPT STATUS", short: "Report on a job as its worker", machine: "assign", verb: "report",
			args: []argument{{name: "JOB", field: "job_id"}, {name: "ATTEMPT", field: "attempt", kind: numberFlag}, {name: "STATUS", field: "status"}},
			flags: []filter{
				{flag: "result", field: "result", kind: jsonFlag, usage: "JSON, or any text"},
				{flag: "error", field: "error", kind: jsonFlag, usage: "JSON, or any text"},
				{flag: "retryable", field: "retryable", kind: boolFlag, usage: "--retryable=false: do not try it again"},
				{flag: "retry-after", field: "retry_after_ms", kind: durationFlag, usage: "try again after this time"},
			}}),
		a.verb(machineVerb{use: "retry JOB", short: "Try a job again that has failed, timed out or was cancelled", machine: "assign", verb: "retry",
			args:  []argument{{name: "JOB", field: "job_id"}},
			flags: []filter{{flag: "force", field: "force", kind: boolFlag, usage: "even if its retries are used up"}}}),
		a.verb(machineVerb{use: "cancel JOB", short: "Cancel a job", machine: "assign", verb: "cancel",
			args:  []argument{{name: "JOB", field: "job_id"}},
			flags: []filter{{flag: "reason", field: "reason", usage: "why"}}}),
	)
	return cmd
}

func (a *app) showJobCommand() *cobra.Command {
	var format listing.Format
	cmd := &cobra.Command{
		Use: "show JOB", Short: "Show one job with its attempts and their messages", Args: oneArg("the id of a job"),
		RunE: func(_ *cobra.Command, args []string) error { return a.showJob(args[0], format) },
	}
	output(cmd, &format, listing.Table, listing.JSON, listing.JSONL)
	return cmd
}

// shownJob is what the table of a job needs of it.
type shownJob struct {
	CorrelationID string `json:"correlation_id"`
	Attempts      []struct {
		Attempt      int64           `json:"attempt"`
		Worker       string          `json:"worker_agent"`
		BegunBy      string          `json:"begun_by"`
		BegunAtMS    int64           `json:"begun_at_ms"`
		BegunID      int64           `json:"begun_id"`
		StartedAtMS  int64           `json:"started_at_ms"`
		StartedID    int64           `json:"started_id"`
		FinishedAtMS int64           `json:"finished_at_ms"`
		FinishedID   int64           `json:"finished_id"`
		Outcome      string          `json:"outcome"`
		Reason       string          `json:"reason"`
		Result       json.RawMessage `json:"result"`
		Error        json.RawMessage `json:"error"`
	} `json:"attempts"`
}

func (a *app) showJob(id string, format listing.Format) error {
	defer a.spin("looking for the job")()
	answer, err := a.askRegister(assign.New().Queries()["get"], map[string]string{"job_id": id})
	if err != nil {
		return err
	}
	if format != listing.Table {
		return listing.Object(a.stdout, format, json.RawMessage(answer))
	}
	var job shownJob
	if err := json.Unmarshal(answer, &job); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	text := sorted(answer, "attempts")
	at := func(ms int64) string { return time.UnixMilli(ms).Local().Format(logTime) }
	for _, t := range job.Attempts {
		text += fmt.Sprintf("\nattempt %d, %s\n    %s  %d  %s\n", t.Attempt, listing.Escape(t.Worker), at(t.BegunAtMS), t.BegunID, listing.Escape(t.BegunBy))
		if t.StartedID != 0 {
			text += fmt.Sprintf("    %s  %d  running\n", at(t.StartedAtMS), t.StartedID)
		}
		if t.FinishedID != 0 {
			text += fmt.Sprintf("    %s  %d  %s, %s\n", at(t.FinishedAtMS), t.FinishedID, listing.Escape(t.Outcome), listing.Escape(t.Reason))
		}
		if len(t.Result) > 0 {
			text += fmt.Sprintf("    result  %s\n", listing.Escape(textOf(t.Result)))
		}
		if len(t.Error) > 0 {
			text += fmt.Sprintf("    error  %s\n", listing.Escape(textOf(t.Error)))
		}
	}
	messages, err := a.jobMessages(job.CorrelationID)
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.stdout, text+messages)
	return err
}

// jobMessages are the messages of a job, a line each.
func (a *app) jobMessages(correlation string) (string, error) {
	ctx := context.Background()
	r, err := a.register(ctx)
	if err != nil {
		return "", err
	}
	defer r.Close()
	page, err := r.Log(ctx, audit.Filter{Correlation: correlation, Kinds: []wire.Kind{wire.Msg}, After: new(int64), Limit: audit.MaxLimit})
	if err != nil || len(page.Rows) == 0 {
		return "", err
	}
	text := "\nmessages\n"
	for _, row := range page.Rows {
		fate, err := bridge.ReadFate(ctx, r, row)
		if err != nil {
			return "", err
		}
		text += listing.Escape(fmt.Sprintf("    %s  %d  %s to %s, %s: %s", row.At().Local().Format(logTime), row.ID, row.Type, row.To, row.Topic, fate.Status)) + "\n"
	}
	return text, nil
}
