//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// play is what this test binary does as another process.
func play(part string, args []string) int {
	parts := map[string]func([]string) error{"nats-server": playServer, "client": playClient, "load": playLoad}
	run, ok := parts[part]
	if !ok {
		fmt.Fprintf(os.Stderr, "no part %q\n", part)
		return 2
	}
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, part+":", err)
		return 1
	}
	return 0
}

// actor is the command that plays a part.
func actor(part string, args ...string) *exec.Cmd {
	cmd := exec.Command(tool.self, args...)
	cmd.Env = append(os.Environ(), partEnv+"="+part)
	return cmd
}

// playServer is a nats-server with JetStream and nothing of ours, until SIGTERM
// or the end of its input.
func playServer(args []string) error {
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: args[1], NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	ns.Start()
	if !ns.ReadyForConnections(20 * time.Second) {
		return fmt.Errorf("not ready at port %d", port)
	}
	fmt.Println("listens", ns.Addr().String())
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the story, however that ends
		term <- syscall.SIGTERM
	}()
	<-term
	ns.Shutdown()
	ns.WaitForShutdown()
	return nil
}

// natsServer is a nats-server in another process.
type natsServer struct {
	*process
	addr, store string
}

// startServer starts one on a store directory; without an address at a free port.
func startServer(t *testing.T, store, addr string) *natsServer {
	t.Helper()
	port := "-1"
	if addr != "" {
		port = addr[strings.LastIndexByte(addr, ':')+1:]
	}
	cmd := actor("nats-server", port, store)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	listens := make(chan string, 1)
	s := &natsServer{store: store, process: begin(t, "nats-server", cmd, func(line string) {
		if a, ok := strings.CutPrefix(line, "listens "); ok {
			listens <- a
		}
	})}
	select {
	case s.addr = <-listens:
	case <-s.done:
		t.Fatalf("the nats-server ended: %v", s.said())
	case <-time.After(25 * time.Second):
		t.Fatal("the nats-server did not start")
	}
	return s
}

func (s *natsServer) url() string { return "nats://" + s.addr }

// stop ends it in order.
func (s *natsServer) stop() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	if code := s.exit(20 * time.Second); code != 0 {
		s.t.Fatalf("the nats-server ended with %d", code)
	}
}

// copyTree copies a directory of files, as a backup would.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// replaceTree puts a copy in the place of a directory.
func replaceTree(t *testing.T, backup, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	copyTree(t, backup, dir)
}

// client is a plain connection of the story itself.
func client(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// stream is the state of a stream.
func stream(t *testing.T, nc *nats.Conn, name string) jetstream.StreamState {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatalf("stream %s: %v", name, err)
	}
	return s.CachedInfo().State
}

// publish publishes and waits for the PubAck.
func publish(t *testing.T, nc *nats.Conn, subject, body string) {
	t.Helper()
	if err := tryPublish(nc, subject, body); err != nil {
		t.Fatalf("publish %s: %v", subject, err)
	}
}

func tryPublish(nc *nats.Conn, subject, body string) error {
	reply, err := nc.Request(subject, []byte(body), 2*time.Second)
	if err != nil {
		return err
	}
	var ack struct {
		Stream string `json:"stream"`
		Error  *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	switch err := json.Unmarshal(reply.Data, &ack); {
	case err != nil:
		return fmt.Errorf("%w: %s", err, reply.Data)
	case ack.Error != nil:
		return fmt.Errorf("refused: %s", ack.Error.Description)
	case ack.Stream == "":
		return fmt.Errorf("no PubAck: %s", reply.Data)
	}
	return nil
}

// request asks the bridge; code is the error's, "" for an answer.
func request(nc *nats.Conn, verb, body string, within time.Duration) (reply map[string]any, code string, err error) {
	msg, err := nc.Request("bus.api.story."+verb, []byte(body), within)
	if err != nil {
		return nil, "", err
	}
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		return nil, "", fmt.Errorf("%w: %s", err, msg.Data)
	}
	if e, ok := reply["error"].(map[string]any); ok {
		code, _ = e["code"].(string)
	}
	return reply, code, nil
}

// path joins a path of the story's own directory.
func path(t *testing.T, name string) string { t.Helper(); return filepath.Join(t.TempDir(), name) }
