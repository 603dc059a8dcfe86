package bridge_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox/audit"
	"signalbox/bridge"
	"signalbox/wire"
)

// Variables that make this test binary a bridge with the test machines, which
// kills itself at a step where it is told to.
const (
	childDir  = "BRIDGE_TEST_CHILD_DIR"
	childURL  = "BRIDGE_TEST_CHILD_URL"
	childKill = "BRIDGE_TEST_CHILD_KILL" // <nth>:<step>
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

// child runs a bridge against the server of the parent until it is killed.
func child(dir string) int {
	nth, step, _ := strings.Cut(os.Getenv(childKill), ":")
	at, _ := strconv.ParseInt(nth, 10, 64)
	var count atomic.Int64
	die := func(s string) error {
		if s == step && count.Add(1) == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal arrives before anything else happens
		}
		return nil
	}
	r, err := build(plan{dir: dir, url: os.Getenv(childURL),
		options: audit.Options{OnStep: func(s audit.Step) error { return die(string(s)) }},
		config:  func(c *bridge.Config) { c.OnStep = func(s bridge.Step) error { return die(string(s)) } }})
	if err == nil {
		err = r.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	fmt.Println("ready")
	<-r.done
	return 0
}

// spawn starts a child and waits until it takes requests, or has died.
func spawn(t *testing.T, dir, url, kill string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childURL+"="+url, childKill+"="+kill)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive a test that timed out
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = bufio.NewReader(out).ReadString('\n') // "ready", or the end of a child that died
	return cmd
}

// persist tries until it succeeds: a client that survives the bridge.
func persist(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		one, done := context.WithTimeout(ctx, 300*time.Millisecond)
		err := try(one)
		done()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// bare is a NATS server without a bridge.
func bare(t *testing.T) string {
	t.Helper()
	r, err := build(plan{dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{r.check, r.reader, r.index, r.reg} {
			_ = c.Close()
		}
		r.nc.Close()
		r.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := r.server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return r.server.ClientURL()
}

// M3: killed at every step of the loop, several times each, then at random
// moments, under load all the while.
func TestM3KilledAtEveryStepUnderLoadNothingIsLostOrDoubled(t *testing.T) {
	url, dir := bare(t), t.TempDir()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, seed))

	// Load goes on over all crashes, from two clients: one publishes with a
	// PubAck, one asks with a request id.
	stop := make(chan struct{})
	counts := [2]int{}
	var errs [2]error
	done := make(chan int, 2)
	for c := range 2 {
		go func() {
			counts[c], errs[c] = hammer(url, fmt.Sprintf("c%d", c), c == 1, stop)
			done <- c
		}()
	}

	var kills []string
	steps := make([]string, 0, 9)
	for _, s := range registerSteps {
		steps = append(steps, string(s))
	}
	steps = append(steps, string(bridge.BeforeReply), string(bridge.BeforePublish), string(bridge.AfterPublish))
	for _, s := range steps {
		for range 2 {
			kills = append(kills, fmt.Sprintf("%d:%s", 1+random.IntN(40), s))
		}
	}
	for range 20 {
		kills = append(kills, "")
	}
	for _, kill := range kills {
		cmd := spawn(t, dir, url, kill)
		after := time.Duration(random.IntN(150)) * time.Millisecond
		if kill != "" {
			after = within // it kills itself
		}
		began := time.Now()
		timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if timer.Stop(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the child at %q ended with %v, not by the signal", kill, err)
		}
		t.Logf("killed at %q after %s", kill, time.Since(began).Round(time.Millisecond))
	}
	last := spawn(t, dir, url, "")
	close(stop)
	for range 2 {
		c := <-done
		if errs[c] != nil {
			t.Fatal(errs[c])
		}
	}
	if err := last.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = last.Wait()
	r := start(t, plan{dir: dir, url: url})
	t.Logf("%d crashes; %d published, %d requests", len(kills)+1, counts[0], counts[1])
	if counts[0] == 0 || counts[1] == 0 {
		t.Error("there was no load")
	}
	whole(t, r, "c0", counts[0])
	whole(t, r, "c1", counts[1])
}

// hammer sends commands one after another until stop, each until it is
// acknowledged, and says how many were.
func hammer(url, prefix string, requests bool, stop <-chan struct{}) (int, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	events, err := nc.SubscribeSync("bus.evt.counter.>")
	if err != nil {
		return 0, err
	}
	for n := 0; ; n++ {
		select {
		case <-stop:
			return n, nil
		default:
		}
		// The log must not grow much faster than it is folded: go on with the
		// event of the last command, or without it when the bridge is down.
		for wait := time.Now().Add(20 * time.Millisecond); n > 0 && time.Now().Before(wait); {
			m, err := events.NextMsg(time.Until(wait))
			if err != nil || strings.HasSuffix(m.Subject, fmt.Sprintf("%s-%d.1", prefix, n-1)) {
				break
			}
		}
		id := fmt.Sprintf("%s-%d", prefix, n)
		m := &nats.Msg{Subject: "bus.cmd.load.counter.add", Data: body(add{Key: id, N: 1}), Header: nats.Header{wire.HeaderMsgID: {id}}}
		err := persist(context.Background(), func(ctx context.Context) error {
			if !requests {
				_, err := js.PublishMsg(ctx, m)
				return err
			}
			m.Subject = "bus.api.load.counter.add"
			reply, err := nc.RequestMsgWithContext(ctx, m)
			if err == nil && reply.Header.Get(wire.HeaderErrorCode) != "" {
				err = fmt.Errorf("%s", reply.Header.Get(wire.HeaderError))
			}
			return err
		})
		if err != nil {
			return n, fmt.Errorf("%s: %w", id, err)
		}
	}
}
