package main

import (
	"github.com/spf13/cobra"

	"signalbox/agents"
)

func (a *app) agentsCommand() *cobra.Command {
	a.as = defaultSender
	cmd := a.list(machineList{
		use: "agents", short: "List who is there", args: noArgs,
		long:  "List the agents that have registered, by id, with what the register knew of them at its last row.",
		query: agents.New(nil).Queries()["list"], records: "agents", limit: 100,
		fields: []field{
			{name: "agent_id", title: "AGENT", min: 8}, {name: "cli", title: "CLI"}, {name: "status", title: "STATUS", whole: true},
			{name: "lease_expires_at_ms", title: "LEASE", show: timeLeft, number: true}, {name: "generation", title: "GEN", number: true},
			{name: "project_id", title: "PROJECT", min: 6}, {name: "delivery", title: "DELIVERY"}, {name: "topics", title: "TOPICS", min: 6},
			{name: "last_seen_at_ms", title: "LAST SEEN", show: localTime}, {name: "capabilities"}, {name: "session_id"}, {name: "host_id"},
			{name: "pid"}, {name: "heartbeat_ttl_ms"},
		},
		filters: []filter{
			{flag: "status", field: "status", usage: "only those that are online, stale or offline"},
			{flag: "project", field: "project_id", usage: "only those of the project"},
			{flag: "topic", field: "topic", usage: "only those with the topic"},
			{flag: "cli", field: "cli", usage: "only codex, gemini, claude or other"},
			{flag: "capability", field: "capability", usage: "only those with the capability"},
			{flag: "after", field: "after", usage: "only those whose id comes after this one"},
		},
	})
	cmd.AddCommand(
		a.verb(machineVerb{use: "get [AGENT]", short: "Show one agent and how many messages wait for it", machine: "agents", verb: "get",
			args: []argument{{name: "AGENT", field: "agent_id", check: agentID, optional: true}}}),
		a.verb(machineVerb{use: "register", short: "Register the agent that --as names", machine: "agents", verb: "register",
			long: `Register the agent that --as names, so that messages are kept for it. The answer has its
generation, which later heartbeats may name, and the end of its lease.`,
			flags: []filter{
				{flag: "cli", field: "cli", usage: "codex, gemini, claude or other (default other)"},
				{flag: "pid", field: "pid", kind: numberFlag, usage: "process id"},
				{flag: "topics", field: "topics", kind: listFlag, usage: "topics, with commas"},
				{flag: "capabilities", field: "capabilities", kind: listFlag, usage: "capabilities, with commas"},
				{flag: "project", field: "project_id", usage: "project id"},
				{flag: "session", field: "session_id", usage: "session id: registering again with the same one renews the lease"},
				{flag: "host", field: "host_id", usage: "host id"},
				{flag: "locators", field: "transport_locators", kind: listFlag, usage: "where it can be reached, with commas (default nats)"},
				{flag: "metadata", field: "metadata", kind: jsonFlag, usage: "a JSON object"},
				{flag: "delivery", field: "delivery", usage: "inbox: messages are kept for it; live: it only subscribes (default inbox)"},
				{flag: "ttl", field: "heartbeat_ttl_ms", kind: durationFlag, usage: "how long a heartbeat counts, 1s to 1h (default 30s)"},
			}}),
		a.verb(machineVerb{use: "heartbeat", short: "Renew the lease of the agent that --as names", machine: "agents", verb: "heartbeat",
			flags: []filter{{flag: "generation", field: "generation", kind: numberFlag, usage: "the generation that beats"}}}),
		a.verb(machineVerb{use: "subscribe TOPIC...", short: "Add topics to the agent that --as names", machine: "agents", verb: "subscribe",
			args:  []argument{{name: "TOPIC", field: "topics", check: topicName, many: true}},
			flags: []filter{{flag: "replace", field: "replace", kind: boolFlag, usage: "in place of the topics that it has"}}}),
		a.verb(machineVerb{use: "deregister", short: "Take the agent that --as names off", machine: "agents", verb: "deregister",
			flags: []filter{{flag: "generation", field: "generation", kind: numberFlag, usage: "its generation, as registering answered it"}}}),
	)
	return cmd
}
