package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
)

// Keys in the metadata of the streams that we make.
const (
	metaStreamID   = "signalbox.stream_id"   // UUID, written once
	metaRegisterID = "signalbox.register_id" // of the register that reads it
)

// Errors of a start that a person must settle. Nothing was touched.
var (
	// ErrForeignStream means that a stream has our name and is not ours.
	ErrForeignStream = errors.New("the stream was not made by signalbox")
	// ErrOtherRegister means that the stream was read by another register.
	ErrOtherRegister = errors.New("the stream belongs to another register")
	// ErrRetention means that a stream to tap removes what was consumed.
	ErrRetention = errors.New("a tapped stream must have limits retention")
)

// logSpec is a log that the bridge reads.
type logSpec struct {
	name   string
	tap    bool                    // drives no machine
	config *jetstream.StreamConfig // nil for a stream of others
}

// logs are the logs of the configuration, BUS first.
func (c *Config) logs() []logSpec {
	bus := jetstream.StreamConfig{
		Name: c.Stream, Description: "Signalbox: the log of the bus",
		Subjects: c.Root.Captured(), Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		Discard: jetstream.DiscardOld, MaxAge: c.MaxAge, MaxBytes: c.MaxBytes, Replicas: c.Replicas,
		Duplicates: min(c.Duplicates, c.MaxAge), DenyDelete: true, DenyPurge: true,
	}
	specs := []logSpec{{name: c.Stream, config: &bus}}
	var subjects []string
	for _, t := range c.Taps {
		if t.Stream != "" {
			specs = append(specs, logSpec{name: t.Stream, tap: true})
		} else {
			subjects = append(subjects, t.Subject)
		}
	}
	if len(subjects) > 0 {
		tap := bus
		tap.Name, tap.Description, tap.Subjects = c.TapStream(), "Signalbox: tapped subjects", subjects
		tap.MaxAge, tap.MaxBytes = c.TapMaxAge, c.TapBytes
		tap.NoAck, tap.Duplicates = true, tapDuplicates
		specs = append(specs, logSpec{name: tap.Name, tap: true, config: &tap})
	}
	return specs
}

// tapDuplicates is the shortest window that JetStream takes: a request of
// another application may repeat its id as it likes.
const tapDuplicates = 100_000_000 // ns

// Claimed says which register a stream of ours was read by; "" where the stream
// does not exist. A start uses it before it makes a register: one that is
// missing must not be replaced by an empty one in silence.
func Claimed(ctx context.Context, js jetstream.JetStream, stream string) (registerID string, err error) {
	s, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("stream %s: %w", stream, err)
	}
	return s.CachedInfo().Config.Metadata[metaRegisterID], nil
}

// ensure makes the log's stream where it is missing, refuses one that is not
// ours, and brings one of ours to today's settings. It returns the stream as it
// is now and its id.
func (s logSpec) ensure(ctx context.Context, js jetstream.JetStream, registerID string, adopt bool) (jetstream.Stream, string, error) {
	stream, err := js.Stream(ctx, s.name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && s.config != nil:
		want := *s.config
		want.Metadata = map[string]string{metaStreamID: uuid.NewString(), metaRegisterID: registerID}
		stream, err = js.CreateStream(ctx, want)
		if err != nil {
			return nil, "", fmt.Errorf("create stream %s: %w", s.name, err)
		}
		return stream, want.Metadata[metaStreamID], nil
	case err != nil:
		return nil, "", fmt.Errorf("stream %s: %w", s.name, err)
	}
	have := stream.CachedInfo().Config
	if s.config == nil {
		if have.Retention != jetstream.LimitsPolicy {
			return nil, "", fmt.Errorf("stream %s: %w; its retention is %s, and an interest or work queue would lose messages before they are registered",
				s.name, ErrRetention, have.Retention)
		}
		return stream, "", nil
	}
	id := have.Metadata[metaStreamID]
	if id == "" {
		return nil, "", fmt.Errorf("stream %s: %w; rename or delete it, or choose another name with bus.stream", s.name, ErrForeignStream)
	}
	if owner := have.Metadata[metaRegisterID]; owner != registerID && !adopt {
		return nil, "", fmt.Errorf("stream %s: %w (%s); put that register back, or start once with --new-register to register anew what the stream still holds",
			s.name, ErrOtherRegister, owner)
	}
	want := updated(have, *s.config)
	want.Metadata[metaRegisterID] = registerID
	if reflect.DeepEqual(want, have) {
		return stream, id, nil
	}
	stream, err = js.UpdateStream(ctx, want)
	if err != nil {
		return nil, "", fmt.Errorf("update stream %s: %w", s.name, err)
	}
	return stream, id, nil
}

// updated is the stream's configuration with our settings; what an operator
// set beside them stays.
func updated(have, want jetstream.StreamConfig) jetstream.StreamConfig {
	next := have
	next.Metadata = maps.Clone(have.Metadata)
	if !slices.Equal(have.Subjects, want.Subjects) {
		next.Subjects = want.Subjects
	}
	next.Description, next.MaxAge, next.MaxBytes, next.Replicas = want.Description, want.MaxAge, want.MaxBytes, want.Replicas
	next.Duplicates, next.NoAck = want.Duplicates, want.NoAck
	return next
}
