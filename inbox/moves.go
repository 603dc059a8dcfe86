package inbox

import (
	"fmt"

	"signalbox/step"
)

// maxStep is how many deliveries one step moves or gives up.
const maxStep = 500

// moveKey starts the keys of the deadlines of moves.
const moveKey = "move"

// What the machine hears of others.
const (
	agentsName       = "agents"
	noticeOnline     = "online"
	noticeSubscribed = "subscribed"

	rolesName    = "roles"
	noticeActive = "active" // the key is the role's name, the data the holder's agent id as a string
	noticeClosed = "closed" // the key is the role's name
)

// subscriber is the Data of the notices online and subscribed.
type subscriber interface {
	// SubscribedTopics are the topics that the agent hears from now on.
	SubscribedTopics() []string
	// LiveOnly reports whether the agent is owed no delivery.
	LiveOnly() bool
}

// move is what is left to do of what was too much for one step: deliveries of
// the source from after AfterID up to LastID.
type move struct {
	source  string
	afterID int64
	lastID  int64
	agent   string // whom they go to; "" to the dead letters
	atMS    int64
}

// subscribed hands over what waited for the first subscriber of a topic. What
// comes later has subscribers of its own.
func (m *Machine) subscribed(db step.DB, in step.Input, n step.Notice) (step.Effects, error) {
	s, ok := n.Data.(subscriber)
	if !ok {
		return step.Effects{}, fmt.Errorf("the notice %s.%s has a %T", n.Machine, n.What, n.Data)
	}
	if s.LiveOnly() || len(s.SubscribedTopics()) == 0 {
		return step.Effects{}, nil
	}
	if err := m.Flush(db); err != nil {
		return step.Effects{}, err
	}
	room, moved := maxStep, 0
	for _, topic := range s.SubscribedTopics() {
		v := move{source: topicRecipient(topic), lastID: in.ID, agent: n.Key, atMS: in.NowMS}
		waits, err := waiting(db, v, in.NowMS, 1)
		if err != nil {
			return step.Effects{}, err
		}
		if len(waits) == 0 {
			continue
		}
		if v.afterID, err = promised(db, v.source); err != nil {
			return step.Effects{}, err
		}
		done, left, err := handOver(db, v, in.NowMS, room)
		if err != nil {
			return step.Effects{}, err
		}
		room, moved = room-done, moved+done
		if left {
			if err := keepMove(db, v); err != nil {
				return step.Effects{}, err
			}
		}
	}
	return wokenIf(moved > 0, n.Key), nil
}

func wokenIf(moved bool, agent string) step.Effects {
	if !moved {
		return step.Effects{}
	}
	return step.Effects{Woken: []string{agent}}
}

// held wakes the new holder of a role: its fetch may have begun to wait when
// the role was not its own.
func held(n step.Notice) (step.Effects, error) {
	holder, ok := n.Data.(string)
	if !ok || holder == "" {
		return step.Effects{}, fmt.Errorf("the notice %s.%s has the holder %v, a %T", n.Machine, n.What, n.Data, n.Data)
	}
	return step.Effects{Woken: []string{holder}}, nil
}

// closed gives up what a role still had to get. Key is the role's name.
func (m *Machine) closed(db step.DB, in step.Input, role string) (step.Effects, error) {
	if err := m.Flush(db); err != nil {
		return step.Effects{}, err
	}
	v := move{source: roleRecipient(role), lastID: in.ID, atMS: in.NowMS}
	effects, left, err := m.giveUp(db, in, v)
	if err == nil && left {
		err = keepMove(db, v)
	}
	return effects, err
}

// goOn does the next part of a move. key is <source>/<agent>/<after>.
func (m *Machine) goOn(db step.DB, in step.Input, key string) (step.Effects, error) {
	v, found, err := readMove(db, key)
	if err != nil || !found {
		return step.Effects{}, err
	}
	var effects step.Effects
	var left bool
	if v.agent == "" {
		effects, left, err = m.giveUp(db, in, v)
	} else {
		var moved int
		moved, left, err = handOver(db, v, in.NowMS, maxStep)
		effects = wokenIf(moved > 0, v.agent)
	}
	if err == nil && !left {
		err = dropMove(db, v)
	}
	return effects, err
}
