package assign

import (
	"encoding/json"

	"signalbox/step"
	"signalbox/wire"
)

// What the machine's messages are about: the topics of what it sends to
// supervisors and workers, and the kinds in the bodies of what workers get.
const (
	TopicResult = "assign.result"
	TopicCancel = "assign.cancel"
	KindJob     = "assign.job"
	KindCancel  = "assign.cancel"
)

// What a supervisor is told, in the field event.
const (
	RetryScheduled = "retry_scheduled" // another attempt is queued
	Completed      = "completed"       // succeeded, failed or timed out for good
	WasCancelled   = "cancelled"       // by the command cancel
	LateResult     = "late_result"     // a report of an attempt that is over; it was refused
)

const cancelPriority = 8

// stamp names the next message about the job. There is one of a kind in a step.
func (d *Decision) stamp(kind string, in step.Input) string {
	d.Job.LastMessageID = in.DeriveID(kind + ":" + d.Job.JobID)
	return d.Job.LastMessageID
}

func (d *Decision) send(o step.Outgoing) {
	o.CorrelationID, o.TraceID = d.Job.CorrelationID, d.Job.TraceID
	d.Effects.Messages = append(d.Effects.Messages, o)
}

// handOff sends the attempt to its worker, or offers it to the topic. The
// message lives as long as the attempt may be queued.
func (d *Decision) handOff(in step.Input) {
	j := &d.Job
	to := wire.Recipient{Class: wire.ToAgent, Name: j.WorkerAgent}
	if j.WorkerTopic != "" {
		to = wire.Recipient{Class: wire.ToTopic, Name: j.WorkerTopic}
	}
	id := d.stamp("handoff", in)
	body := map[string]any{
		"kind": KindJob, "assign_job_id": j.JobID, "reason": j.BegunBy, "attempt": j.Attempt, "retry_count": j.RetryCount,
		"max_retries": j.MaxRetries, "timeout_ms": j.TimeoutMS, "deadline_ms": j.DeadlineMS, "topic": j.Topic,
		"supervisor": j.SupervisorAgent,
	}
	if j.WorkerTopic != "" {
		body["worker_topic"] = j.WorkerTopic
	} else {
		body["worker"] = j.WorkerAgent
	}
	if j.LeaseMS != 0 {
		body["lease_ms"] = j.LeaseMS
	}
	setValue(body, "task", j.Task, whole)
	setValue(body, "payload", j.Payload, whole)
	d.send(step.Outgoing{ID: id, To: to, Type: wire.TypeHandoff, Topic: j.Topic, Priority: int(j.Priority),
		TTL: wire.ClampTTL(j.DeadlineMS - in.NowMS), Body: body})
}

// callOff tells the worker of the attempt that is about to end to stop, if it
// can know of it. It is an event: nobody is owed an answer.
func (d *Decision) callOff(reason string, in step.Input) {
	j := &d.Job
	if j.WorkerAgent == "" || j.Status == Queued && j.DispatchedAtMS == 0 {
		return
	}
	d.send(step.Outgoing{ID: d.stamp("cancel", in), To: wire.Recipient{Class: wire.ToAgent, Name: j.WorkerAgent}, Type: wire.TypeEvent,
		Topic: TopicCancel, Priority: cancelPriority, TTL: wire.ClampTTL(j.TimeoutMS),
		Body: map[string]any{"kind": KindCancel, "assign_job_id": j.JobID, "attempt": j.Attempt, "reason": reason}})
}

// tellEnd tells the supervisor how the job has ended, with its whole result.
func (d *Decision) tellEnd(in step.Input) {
	event := Completed
	if d.Job.Status == Cancelled {
		event = WasCancelled
	}
	d.tell(event, in, func(body map[string]any) {
		body["completion_reason"] = d.Ended.Reason
		setValue(body, "result", d.Job.Result, whole)
	})
}

// tellRetry tells the supervisor that another attempt was queued. The snapshot
// has the worker of the attempt before, also where the job is offered again.
func (d *Decision) tellRetry(worker string, more map[string]any, in step.Input) {
	d.tell(RetryScheduled, in, func(body map[string]any) {
		body["retry_reason"] = d.Job.BegunBy
		if worker != "" {
			body["worker_agent"] = worker
		}
		for name, v := range more {
			body[name] = v
		}
	})
}

// tell sends the supervisor the snapshot with what more there is to say. It
// lives as long as a message may: results wait for supervisors that are away.
func (d *Decision) tell(event string, in step.Input, more func(map[string]any)) {
	id := d.stamp("result", in)
	body := d.Job.Snapshot(inEvents)
	body["event"] = event
	more(body)
	d.send(step.Outgoing{ID: id, To: wire.Recipient{Class: wire.ToAgent, Name: d.Job.SupervisorAgent}, Type: wire.TypeEvent,
		Topic: TopicResult, Priority: max(wire.DefaultPriority, int(d.Job.Priority)), TTL: wire.MaxTTL, Body: body})
}

// late is what follows a final report of an attempt that is over, from the
// worker that had it: the supervisor gets what would be lost otherwise. Of the
// job nothing changes, not even its last message.
func late(j Job, r *Report, from string, in step.Input) Decision {
	d := Decision{Job: j}
	d.tell(LateResult, in, func(body map[string]any) {
		body["stale_attempt"], body["late_status"], body["reported_by"] = r.Attempt, r.Status, from
		body["late_result"], body["late_error"] = orNull(r.Result), orNull(r.Error)
		if j.LastMessageID != "" {
			body["last_message_id"] = j.LastMessageID
		}
	})
	return Decision{Effects: step.Effects{Messages: d.Effects.Messages}}
}

// orNull is a JSON value, null where there is none.
func orNull(raw json.RawMessage) any {
	if raw == nil {
		return nil
	}
	return raw
}
