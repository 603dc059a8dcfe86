package roles

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the scripts in testdata with what comes out")

// The scenarios of the design, R1 to R12, as scripts: a command, four dashes,
// and what comes of it. A script reads like a log; -update rewrites what comes
// out, to be read before it is kept.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 12 {
		t.Fatalf("there are %d scripts, want 12 and more: %v", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { runScript(t, f) })
	}
}

func runScript(t *testing.T, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, world: sqlWorld(t)}
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(string(raw)), "\n\n") {
		command, _, _ := strings.Cut(block, "\n----")
		out.WriteString(command + "\n")
		got := ""
		for line := range strings.SplitSeq(command, "\n") {
			if !strings.HasPrefix(line, "#") {
				got += s.run(line)
			}
		}
		if strings.Contains(block, "\n----") || got != "" {
			out.WriteString("----\n" + got)
		}
		out.WriteString("\n")
	}
	got := strings.TrimRight(out.String(), "\n") + "\n"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != string(raw) {
		t.Errorf("%s comes out otherwise (go test -run TestScenarios -update rewrites it):\n%s", file, firstDifference(string(raw), got))
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range g {
		if i >= len(w) || w[i] != g[i] {
			return fmt.Sprintf("line %d: want %q, got\n%s", i+1, strings.Join(w[min(i, len(w)):min(i+1, len(w))], ""), strings.Join(g[i:min(i+6, len(g))], "\n"))
		}
	}
	return "it is shorter"
}

// script runs the lines of a script in a world.
type script struct {
	t     *testing.T
	world *world
}

var scriptRoles = map[string]Key{"cto": ctoOne, "cto2": ctoTwo, "lead1": leadOne, "lead2": leadTwo}

// run runs a line and says what came of it.
func (s *script) run(line string) string {
	s.t.Helper()
	w, words := s.world, strings.Fields(line)
	if len(words) == 0 {
		return ""
	}
	before := w.now
	var err error
	switch words[0] {
	case "register": // register AGENT [project=one|two|none] [live] [locator=L] [cto] [lead] [probe]
		s.register(words[1], words[2:])
	case "beat":
		w.next()
		for _, id := range words[1:] {
			w.lapse(id)
			w.beat(id)
		}
	case "deregister":
		w.deregister(words[1])
	case "wait", "pass": // wait ends in a tick, pass does not
		d, bad := time.ParseDuration(words[1])
		if bad != nil {
			s.t.Fatal(bad)
		}
		w.now += d.Milliseconds()
		if w.next(); words[0] == "wait" {
			err = w.tick()
		}
	case "due": // wait until a role is due, while these beat
		w.now = w.due(1 << 60)[0].AtMS
		for _, id := range words[1:] {
			w.seen(id, 0)
		}
		err = w.tick()
	case "probed": // probed reachable|unreachable: the last probe
		err = w.probed(w.probes[len(w.probes)-1], words[1] == "reachable")
	case "publish": // publish FROM ROLE
		_, err = w.sent(words[1], w.messageTo(scriptRoles[words[2]]))
		return s.outcome(0, err) + accepted(err)
	case "act": // act FROM ROLE EPOCH: a message that acts for a role
		m := w.messageTo(Key{})
		m.From, m.Envelope.Role, m.Envelope.RoleEpoch = words[1], scriptRoles[words[2]].Name(), words[3]
		_, err = w.sent(words[1], m)
		return s.outcome(0, err) + accepted(err)
	case "restart":
		err = w.restart(words[1] == "embedded")
	case "gap":
		n, _ := strconv.ParseInt(words[1], 10, 64)
		err = w.gap(n)
	case "settings":
		w.next()
		w.settings = strings.TrimPrefix(line, "settings ")
	case "sql": // what another hand does to the tables
		w.next()
		_, err = w.db.Exec(strings.TrimPrefix(line, "sql "))
	case "show":
		return s.show()
	case "fifty": // fifty FROM VERB ROLE …
		return s.fifty(words[1], words[2], s.body(words[2], words[3:]))
	default: // FROM VERB [ROLE] [{…}]
		_, err = w.command(words[0], words[1], s.body(words[1], words[2:]))
	}
	return s.outcome(w.now-before, err)
}

func accepted(err error) string {
	if err != nil {
		return ""
	}
	return "accepted\n"
}

func (s *script) register(id string, words []string) {
	project, live, locator := projectOne, false, "nats"
	var capabilities []string
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "project":
			project = map[string]string{"one": projectOne, "two": projectTwo}[value]
		case "locator":
			locator = value
		case "live":
			live = true
		case capabilityProbe:
			capabilities = append(capabilities, name)
		default:
			capabilities = append(capabilities, capability(name))
		}
	}
	s.world.register(id, project, live, []string{locator}, capabilities...)
}

// body is the body of a command: the role's key, what the verb always needs, and
// the fields given. An ack repeats the last activation, or the n-th (#n).
func (s *script) body(verb string, words []string) string {
	fields := map[string]any{}
	if len(words) > 0 && !strings.HasPrefix(words[0], "{") {
		k, ok := scriptRoles[words[0]]
		if !ok && verb != verbAck {
			s.t.Fatalf("there is no role %q", words[0])
		}
		fields["role_key"] = k
		if verb == verbEnsure {
			fields["trigger"], fields["cause_id"] = "manual", "c"
		}
		if verb == verbAck && strings.HasPrefix(words[0], "#") {
			n, _ := strconv.Atoi(words[0][1:])
			fields = ackOf(s.world.messages[n-1])
		} else if verb == verbAck {
			r := s.world.role(k)
			fields = ackOf(activationOf(&r, ""))
		}
		words = words[1:]
	}
	if len(words) > 0 {
		if err := json.Unmarshal([]byte(strings.Join(words, " ")), &fields); err != nil {
			s.t.Fatalf("%s: %v", words, err)
		}
	}
	return string(marshal(fields))
}

func (s *script) fifty(from, verb, body string) string {
	count := map[string]int{}
	moves := 0
	for range 50 {
		e := s.world.must(s.t, from, verb, body)
		count[string(e.Reply.(EnsureReply).Disposition)]++
		moves += len(e.Transitions)
	}
	return fmt.Sprintf("%v, %d transitions\n", count, moves)
}

// outcome is what the last operation did, in the order in which it was done.
func (s *script) outcome(passed int64, err error) string {
	var b strings.Builder
	if passed > 0 {
		fmt.Fprintf(&b, "after %dms\n", passed)
	}
	for _, e := range s.world.effects {
		for _, t := range e.Transitions {
			r := t.Body.(*Snapshot)
			from := t.From
			if from == "" {
				from = "(new)"
			}
			fmt.Fprintf(&b, "%s: %s → %s by %s, epoch %d%s\n", s.short(r.RoleKey), from, t.To, t.Reason, r.Epoch, holderText(r))
		}
		for _, h := range e.Events {
			fmt.Fprintf(&b, "event %s\n", h.What)
		}
		for _, h := range e.Told {
			body := h.Body.(map[string]any)
			fmt.Fprintf(&b, "%s is told: %s, %s\n", h.Key, h.What, body["code"])
		}
		for _, o := range e.Messages {
			a := o.Body.(Activation)
			fmt.Fprintf(&b, "message to %s: %s at epoch %d, charter %q\n", o.To.Name, s.short(a.RoleKey), a.Epoch, a.CharterVersion)
		}
		for _, q := range e.Requests {
			fmt.Fprintf(&b, "probe of %s, %s at most\n", q.Agent, q.Timeout)
		}
		for _, n := range e.Notices {
			k, _ := ParseName(n.Key)
			fmt.Fprintf(&b, "notice %s of %s\n", n.What, s.short(k))
		}
		if e.Reply != nil {
			fmt.Fprintf(&b, "reply %s\n", s.reply(e.Reply))
		}
	}
	if code := codeOf(err); code != "" {
		fmt.Fprintf(&b, "refused: %s\n", code)
	}
	return b.String()
}

func holderText(r *Snapshot) string {
	out := ""
	if r.HolderAgentID != nil {
		out += ", holder " + *r.HolderAgentID
	}
	if r.BlockedReason != nil {
		out += ", blocked " + *r.BlockedReason
	}
	if r.NextProbeAtMS != nil {
		out += fmt.Sprintf(", next after %dms", *r.NextProbeAtMS-r.LastTransitionAtMS)
	}
	return out
}

// short is a role as scripts name it.
func (s *script) short(k Key) string {
	for name, other := range scriptRoles {
		if other == k {
			return name
		}
	}
	return k.Name()
}

// reply is a reply without what differs for no reason that matters here.
func (s *script) reply(v any) string {
	var fields map[string]any
	if err := json.Unmarshal(marshal(v), &fields); err != nil {
		s.t.Fatal(err)
	}
	for _, name := range []string{"role_key", "role_key_wire", "activation_id", "activation_seq"} {
		delete(fields, name)
	}
	return strings.ReplaceAll(strings.NewReplacer(projectOne, "one", projectTwo, "two", scopeOne, "1", scopeTwo, "2").Replace(string(marshal(fields))), `"`, "")
}

// show are the roles and what is remembered of candidates.
func (s *script) show() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(scriptRoles)) {
		k := scriptRoles[name]
		r, err := s.world.store.Role(k.Name())
		if d := asDamage(err); d != nil {
			fmt.Fprintf(&b, "%s: damaged, %v\n", name, d.err)
			continue
		}
		if r == nil {
			continue
		}
		snapshot := r.Snapshot()
		fmt.Fprintf(&b, "%s: %s by %s, epoch %d, version %d%s\n", name, r.State, r.LastReason, r.Epoch, r.Version, holderText(&snapshot))
		list, _, err := s.world.store.Candidates(k.Name(), maxCandidates)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, c := range list {
			fmt.Fprintf(&b, "  %s: %s, %d failures", c.AgentID, c.Source, c.Failures)
			if left := c.ExcludedUntilMS - s.world.now; left > 0 {
				fmt.Fprintf(&b, ", excluded for %dms by %s", left, c.ExcludedReason)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
