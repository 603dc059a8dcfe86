package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"signalbox/wire"
)

// Tap is a capture of other applications' messages: either subjects that no
// stream has yet, which go into the tap stream, or a stream that exists.
type Tap struct {
	Subject string // "svc.>"
	Stream  string // "ORDERS"; limits retention only
}

// Config is all that the bridge can be told. The zero value of a field is its
// default unless it says otherwise.
type Config struct {
	Instance string // names this bridge in ce-source; default "signalbox"
	Version  string // of the program
	Embedded bool   // the server runs in this process

	Root       wire.Root     // default "bus"
	Stream     string        // default "BUS"; the tap stream is it and "_TAP"
	MaxAge     time.Duration // default 72 h
	MaxBytes   int64         // default 8 GiB
	Replicas   int           // default 1
	Duplicates time.Duration // default 30 s
	Taps       []Tap
	TapMaxAge  time.Duration // default 24 h
	TapBytes   int64         // default 2 GiB

	BatchMax  int           // messages in a transaction; default and limit 1,000
	FirstTick time.Duration // from the start to the first tick; default 10 s

	// Rollup is how often the heartbeats since the last one become one command;
	// default 5 s.
	Rollup time.Duration

	// DataDir is where free space is watched, and MinFree the bytes that must
	// stay free; 0 is max(1 GiB, 5 %). Without a DataDir nothing is watched.
	DataDir string
	MinFree int64

	// NewRegister accepts a stream that another register has read.
	NewRegister bool

	// Settings are what the rules of each machine are set to; they go into
	// bridge.started, and machines read them only from there.
	Settings map[string]json.RawMessage

	// RestartServer restarts the embedded server, whose streams stay frozen
	// after a full disk; nil where there is none.
	RestartServer func(context.Context) error

	// OnStep, where set, is called around each step outside the register that
	// a crash could fall on; tests kill the process or inject errors there.
	OnStep func(Step) error

	Log *slog.Logger // default slog.Default()
}

// Step names a moment around a durable step of the loop.
type Step string

// The steps of the loop beside those of the register, in code order.
const (
	BeforeReply    Step = "before reply"
	BeforePublish  Step = "before publish"
	AfterPublish   Step = "after publish"
	BeforeAppend   Step = "before append to log"
	AfterAppendLog Step = "after append to log"
)

// TapStream is the name of the stream of tapped subjects.
func (c Config) TapStream() string { return c.Stream + "_TAP" }

func (c *Config) setDefaults() error {
	def(&c.Instance, "signalbox")
	def(&c.Root, "bus")
	def(&c.Stream, "BUS")
	def(&c.MaxAge, 72*time.Hour)
	def(&c.MaxBytes, 8<<30)
	def(&c.Replicas, 1)
	def(&c.Duplicates, 30*time.Second)
	def(&c.TapMaxAge, 24*time.Hour)
	def(&c.TapBytes, 2<<30)
	def(&c.BatchMax, batchMessages)
	def(&c.FirstTick, 10*time.Second)
	def(&c.Rollup, 5*time.Second)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.BatchMax < 1 || c.BatchMax > batchMessages {
		return fmt.Errorf("batch_max %d is not between 1 and %d", c.BatchMax, batchMessages)
	}
	for _, t := range c.Taps {
		if (t.Subject == "") == (t.Stream == "") {
			return errors.New("a tap has either a subject or a stream")
		}
	}
	return nil
}

func def[T comparable](v *T, value T) {
	if *v == *new(T) {
		*v = value
	}
}

func (c *Config) on(s Step) error {
	if c.OnStep == nil {
		return nil
	}
	return c.OnStep(s)
}
