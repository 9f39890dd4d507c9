package process

import (
	"context"
	"errors"
	"os"
	"time"

	"connectrpc.com/connect"
)

// input is the writing end of a process's stdin or terminal. One writer at a time; a full pipe makes it wait.
type input struct {
	turn     chan struct{}
	file     *os.File // nil: none
	closed   bool     // changed by who has the turn
	terminal bool
}

func newInput(file *os.File, terminal bool) *input {
	return &input{turn: make(chan struct{}, 1), file: file, terminal: terminal}
}

var (
	errNoInput = connect.NewError(connect.CodeFailedPrecondition,
		errors.New("the process takes no stdin: it was started without stdin, or stdin is closed"))
	errTerminalInput = connect.NewError(connect.CodeFailedPrecondition,
		errors.New("the process has a terminal: send pty input instead of stdin"))
)

// write blocks until the process has taken everything, or ctx ends.
func (i *input) write(ctx context.Context, data []byte) error {
	if err := i.enter(ctx); err != nil {
		return err
	}
	defer i.leave()
	if i.file == nil || i.closed {
		return errNoInput
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = i.file.SetWriteDeadline(time.Unix(1, 0))
	})
	_, err := i.file.Write(data)
	if !stop() {
		<-interrupted
		_ = i.file.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return connect.NewError(connect.CodeFailedPrecondition, err)
}

// close ends a pipe; for a terminal the caller sends Ctrl-D instead.
func (i *input) close(ctx context.Context) error {
	if i.terminal {
		return connect.NewError(connect.CodeFailedPrecondition,
			errors.New("a terminal's stdin cannot be closed: send Ctrl-D (0x04) instead"))
	}
	if err := i.enter(ctx); err != nil {
		return err
	}
	defer i.leave()
	if i.file == nil || i.closed {
		return errNoInput
	}
	i.closed = true
	return i.file.Close()
}

// shutdown frees the pipe of an ended process and wakes whoever still writes. A terminal is closed by its reader.
func (i *input) shutdown() {
	if i.file != nil && !i.terminal {
		_ = i.file.Close()
	}
}

func (i *input) enter(ctx context.Context) error {
	select {
	case i.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (i *input) leave() { <-i.turn }
