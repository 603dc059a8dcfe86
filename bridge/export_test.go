package bridge

// Waiting is how many polls wait.
func (b *Bridge) Waiting() int { return b.polls.waiting() }
