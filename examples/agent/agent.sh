#!/bin/sh
# An agent with nothing but the nats CLI: it registers, beats, fetches, works
# and acks.
#
#   agent.sh ID [MESSAGES]
#
# It stops after that many messages; without, it goes on until it is stopped.
# NATS_URL says where the bus is.
set -eu
id=${1:?usage: agent.sh ID [MESSAGES]} most=${2:-0} done=0

ask() { # VERB BODY: one request; a refusal is a JSON object with "error"
	reply=$(nats request --raw --timeout 40s "bus.api.$id.$1" "$2" 2>/dev/null) || reply='{"error":"no answer"}'
	case $reply in
	'{"error"'* | '') echo "$1: $reply" >&2; return 1 ;;
	esac
	printf '%s\n' "$reply"
}

# Whatever waits for this id is delivered from now on, and what a former run
# fetched and did not ack comes again.
registered=$(ask agents.register "{\"cli\":\"other\",\"topics\":[\"work\"],\"pid\":$$}")
generation=$(printf '%s' "$registered" | sed -n 's/.*"generation":\([0-9]*\).*/\1/p')

# A lease runs for 30 s. With the generation in it, a heartbeat of a run that
# was replaced counts for nothing.
(while sleep 5; do nats publish --quiet "bus.hb.$id" "{\"generation\":$generation}"; done) &
beating=$!
trap 'kill "$beating" 2>/dev/null || true' EXIT
trap 'exit 143' INT TERM

while [ "$most" -eq 0 ] || [ "$done" -lt "$most" ]; do
	# Wait up to 30 s for the next message; one that waits is there at once.
	reply=$(ask inbox.fetch '{"max_messages":1,"wait_ms":30000}') || { sleep 1; continue; }
	row=$(printf '%s' "$reply" | sed -n 's/^{"messages":\[{"id":\([0-9]*\),.*/\1/p')
	[ -n "$row" ] || continue

	echo "working on $reply"

	# Only what is acked is done: a crash before this line brings it again.
	ask inbox.ack "{\"ids\":[$row]}" >/dev/null
	done=$((done + 1))
done
ask agents.deregister "{\"generation\":$generation}" >/dev/null
