package main

import (
	"github.com/spf13/cobra"

	"signalbox/inbox"
)

// inboxQueries are what the inbox answers from the register.
var inboxQueries = inbox.New(inbox.Facts{}).Queries()

func (a *app) inboxCommand() *cobra.Command {
	a.as = defaultSender
	cmd := a.list(machineList{
		use: "inbox AGENT", short: "List what an agent is still owed", args: oneArg("the id of an agent"),
		long: `List the messages that wait for an agent, or that it has fetched and not acked, most
urgent first. AGENT may also be topic:<topic> or role:<project>/<kind>[/<scope>]: what
waits for the first who subscribes, or for the holder.`,
		query: inboxQueries["pending"], argument: "agent", records: "deliveries", limit: 50,
		fields: []field{
			{name: "id", title: "ID", number: true, whole: true}, {name: "priority", title: "PRIO", number: true},
			{name: "status", title: "STATUS", whole: true}, {name: "from", title: "FROM", min: 5}, {name: "type", title: "TYPE"},
			{name: "topic", title: "TOPIC", min: 5}, {name: "attempts", title: "TRIES", number: true},
			{name: "expires_at_ms", title: "EXPIRES IN", show: timeLeft, number: true}, {name: "message_id", title: "MESSAGE ID", min: 8},
			{name: "recipient"}, {name: "delivered_at_ms"}, {name: "delivered_to"},
		},
	})
	cmd.AddCommand(
		a.verb(machineVerb{use: "fetch", short: "Fetch the messages of the agent that --as names", machine: "inbox", verb: "fetch",
			flags: []filter{
				{flag: "max", field: "max_messages", kind: numberFlag, usage: "how many at most, 1 to 100 (default 20)"},
				{flag: "topics", field: "include_topics", kind: listFlag, usage: "only these topics, with commas"},
				{flag: "auto-ack", field: "auto_ack", kind: boolFlag, usage: "ack them at once"},
				{flag: "wait", field: "wait_ms", kind: durationFlag, usage: "wait so long for the first one, up to 30s; raise --timeout too"},
				{flag: "redeliver-after", field: "redeliver_after_ms", kind: durationFlag, usage: "give out again what was not acked for so long (default 30s)"},
			}}),
		a.verb(machineVerb{use: "ack ID...", short: "Ack messages", machine: "inbox", verb: "ack",
			args: []argument{{name: "ID", field: "ids", kind: messageFlag, many: true}}}),
		a.verb(machineVerb{use: "reject ID", short: "Give a message back as one that cannot be handled", machine: "inbox", verb: "reject",
			args:  []argument{{name: "ID", field: "id", kind: messageFlag}},
			flags: []filter{{flag: "reason", field: "reason", usage: "why"}}}),
	)
	return cmd
}

func (a *app) deadCommand() *cobra.Command {
	a.as = defaultSender
	cmd := a.list(machineList{
		use: "dead", short: "List dead letters", args: noArgs,
		long:  "List what was refused, rejected, or not acked in time, newest first.",
		query: inboxQueries["dead"], records: "dead", limit: 50,
		fields: []field{
			{name: "id", title: "ID", number: true, whole: true}, {name: "failed_at_ms", title: "FAILED", show: localTime},
			{name: "recipient", title: "RECIPIENT", min: 8}, {name: "reason", title: "REASON", min: 10}, {name: "from", title: "FROM", min: 5},
			{name: "type", title: "TYPE"}, {name: "topic", title: "TOPIC", min: 5}, {name: "last_error", title: "ERROR", min: 8},
			{name: "message_id", title: "MESSAGE ID", min: 8}, {name: "cause"},
		},
		filters: []filter{
			{flag: "recipient", field: "recipient", usage: "only those of the recipient"},
			{flag: "reason", field: "reason", usage: "only those with the reason: ttl_expired, rejected, refused:<CODE> …"},
			{flag: "after", field: "after", usage: "go on after this page, as the one before said"},
		},
	})
	cmd.AddCommand(a.verb(machineVerb{use: "redrive ID", short: "Put a dead letter back with a fresh time to live", machine: "inbox", verb: "redrive",
		args:  []argument{{name: "ID", field: "message_id", kind: messageFlag}},
		flags: []filter{{flag: "recipient", field: "recipient", usage: "whose, where several have it"}}}))
	return cmd
}
