package bridge

import (
	"context"
	"sync"
)

// position is how far the log has been folded; others wait for it to pass a
// number.
type position struct {
	mu    sync.Mutex // guards what follows
	seq   uint64
	moved chan struct{} // closed with the next move
}

func newPosition() *position { return &position{moved: make(chan struct{})} }

// set moves to seq, back too where the log went back.
func (p *position) set(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seq == seq {
		return
	}
	p.seq = seq
	close(p.moved)
	p.moved = make(chan struct{})
}

func (p *position) now() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seq
}

// wait returns when the fold has reached seq, or with the error of ctx.
func (p *position) wait(ctx context.Context, seq uint64) error {
	for {
		p.mu.Lock()
		reached, moved := p.seq >= seq, p.moved
		p.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
