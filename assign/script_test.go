package assign

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"signalbox/step"
	"signalbox/wire"
)

var update = flag.Bool("update", false, "rewrite the scripts in testdata with what happens now")

// The scripts in testdata are the scenarios J1 to J13 as far as rules go. A
// block is comments, one command, "----" and what comes of it:
//
//	<verb> <sender> <body>   a command: its outcome, the job, what is announced
//	after <ms>               bus time passes, and nobody ticks
//	start <ms>               so long everything was down; the bridge has started
//	tick                     what is due is handled
//	deadline <job>           a deadline that was found earlier is handled
//	job <job>                the job and its attempts
//	list <body>              the ids and states of a list
//	settings <body>          as the next bridge.started has them
//	damage <job> <column> <value>
//
// Times are milliseconds since the script began.
func TestScriptsOfJobs(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(raw))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(raw) {
				t.Errorf("%s: %s", file, firstDifference(got, string(raw)))
			}
		})
	}
}

// firstDifference shows the blocks that differ first.
func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n\n"), strings.Split(want, "\n\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("now\n%s\n\nand the script says\n%s", a[i], b[i])
		}
	}
	return fmt.Sprintf("%d blocks, and the script has %d", len(a), len(b))
}

type script struct {
	*bus
	out strings.Builder
}

// runScript is the script with what happens now.
func runScript(t *testing.T, text string) string {
	s := &script{bus: newBus(t)}
	var blocks []string
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		head, _, _ := strings.Cut(block+"\n", "\n----\n")
		s.out.Reset()
		for line := range strings.SplitSeq(strings.TrimSpace(head), "\n") {
			if line != "" && !strings.HasPrefix(line, "#") {
				s.line(line)
			}
		}
		if head = strings.TrimSpace(head); onlyComments(head) {
			blocks = append(blocks, head)
			continue
		}
		blocks = append(blocks, strings.TrimRight(head+"\n----\n"+s.out.String(), "\n"))
	}
	return strings.Join(blocks, "\n\n") + "\n"
}

func onlyComments(head string) bool {
	for line := range strings.SplitSeq(head, "\n") {
		if !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

func (s *script) say(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func (s *script) line(line string) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "after":
		ms, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		s.nowMS += ms
		s.say("now %d", s.nowMS-start)
	case "start":
		ms, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		s.restart(ms)
		s.say("now %d", s.nowMS-start)
	case "tick":
		s.row++
		for _, d := range s.due(500) {
			s.deadline(d)
		}
	case "deadline":
		s.row++
		s.deadline(step.Deadline{Key: rest, AtMS: s.nowMS})
	case "job":
		s.job(rest)
	case "list":
		page, refusal := s.ask("list", rest)
		if refusal != nil {
			s.say("%s: %s", refusal.Code, refusal.Message)
			return
		}
		for _, j := range page["jobs"].([]any) {
			j := j.(map[string]any)
			if damaged, ok := j["damaged"]; ok {
				s.say("%s: %s", j["job_id"], damaged)
				continue
			}
			s.say("%s %s", j["job_id"], j["status"])
		}
	case "settings":
		s.settings = step.Settings{machineName: []byte(rest)}
	case "damage":
		f := strings.Fields(rest)
		if _, err := s.db.DB.Exec(`UPDATE jobs SET `+f[1]+` = ? WHERE job_id = ?`, f[2], f[0]); err != nil {
			s.t.Fatal(err)
		}
		s.m.Forget() // as after a restart
	default:
		from, body, _ := strings.Cut(rest, " ")
		s.command(word, from, body)
	}
}

func (s *script) deadline(d step.Deadline) {
	effects, err := s.apply(wire.Bridge, d)
	if err != nil {
		s.say("%s fails: %v", d.Key, err)
		return
	}
	s.announced(effects)
	if lines := said(effects); len(lines) > 0 {
		s.state(d.Key)
	} else {
		s.say("%s: nothing", d.Key)
	}
}

func (s *script) command(verb, from, body string) {
	// NOW+n in a body is an instant, which a script cannot know.
	if i := strings.Index(body, "NOW+"); i >= 0 {
		end := i + 4
		for end < len(body) && body[end] >= '0' && body[end] <= '9' {
			end++
		}
		ms, _ := strconv.ParseInt(body[i+4:end], 10, 64)
		body = body[:i] + strconv.FormatInt(s.nowMS+ms, 10) + body[end:]
	}
	effects, refusal := s.send(from, verb, body)
	if refusal != nil {
		s.say("%s: %s", refusal.Code, refusal.Message)
		s.announced(effects)
		return
	}
	reply := object(s.t, effects.Reply)
	line := "ok"
	for _, flag := range []string{"idempotent", "deduplicated", "retried"} {
		if reply[flag] == true {
			line += " " + flag
		}
	}
	s.say("%s", line)
	s.announced(effects)
	s.state(reply["job_id"].(string))
}

func (s *script) announced(e step.Effects) {
	for _, line := range said(e) {
		s.say("%s", line)
	}
}

// state is the job in a line.
func (s *script) state(id string) {
	j, err := tables{s.db}.job(id)
	if err != nil {
		s.say("%v", err)
		return
	}
	since := func(ms int64) string {
		if ms == 0 {
			return "-"
		}
		return strconv.FormatInt(ms-start, 10)
	}
	who := j.WorkerAgent
	if j.WorkerTopic != "" {
		who = "topic:" + j.WorkerTopic
		if j.WorkerAgent != "" {
			who += " claimed by " + j.WorkerAgent
		}
	}
	line := fmt.Sprintf("%s: %s attempt %d, retries %d of %d, %s", j.JobID, j.Status, j.Attempt, j.RetryCount, j.MaxRetries, who)
	for _, f := range []struct {
		name string
		at   int64
	}{{"dispatched", j.DispatchedAtMS}, {"started", j.StartedAtMS}, {"completed", j.CompletedAtMS}, {"due", j.DueAtMS()}, {"deadline", j.DeadlineMS}} {
		if f.at != 0 {
			line += fmt.Sprintf(", %s %s", f.name, since(f.at))
		}
	}
	if j.Result != nil {
		line += ", result " + string(j.Result)
	}
	if j.Error != nil {
		line += ", error " + string(j.Error)
	}
	s.say("%s", line)
}

// job is the job with its attempts.
func (s *script) job(id string) {
	s.state(id)
	list, err := s.m.Attempts(s.db, id)
	if err != nil {
		s.say("%v", err)
		return
	}
	for _, a := range list {
		line := fmt.Sprintf("  attempt %d (%s)", a.Attempt, a.BegunBy)
		if a.WorkerAgent != "" {
			line += " of " + a.WorkerAgent
		}
		if a.Outcome != "" {
			line += fmt.Sprintf(": %s, %s", a.Outcome, a.Reason)
		}
		if a.Result != nil {
			line += ", result " + string(a.Result)
		}
		if a.Error != nil {
			line += ", error " + string(a.Error)
		}
		s.say("%s", line)
	}
}
