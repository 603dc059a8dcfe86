package main

import (
	"context"
	"errors"
	"fmt"

	"signalbox/audit"
	"signalbox/cmd/signalbox/config"
	"signalbox/wire"
)

// register opens the configured register for reading, whatever the bridge is
// doing. It makes nothing: a register that is not there is "not found".
func (a *app) register(ctx context.Context) (*audit.Reader, error) {
	c, err := a.load(nil)
	if err != nil {
		return nil, err
	}
	return openRegister(ctx, c)
}

func openRegister(ctx context.Context, c config.Config) (*audit.Reader, error) {
	r, err := audit.OpenReader(ctx, c.RegisterPath(), audit.ReaderOptions{Root: wire.Root(c.Bus.Root)})
	if errors.Is(err, audit.ErrNoRegister) {
		return nil, &exitError{exitNotFound, fmt.Errorf("%w; \"signalbox serve\" makes one, --data names the directory of another", err)}
	}
	return r, err
}

// asked gives an error of a query its exit code.
func asked(err error) error {
	if errors.Is(err, audit.ErrFilter) {
		return usage(err)
	}
	return err
}
