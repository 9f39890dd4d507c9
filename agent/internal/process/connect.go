package process

import (
	"errors"
	"math"
	"os"
	"syscall"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	pb "aenv.dev/agent/internal/gen/process"
)

// childEnds are the descriptors a child gets as 0, 1 and 2; ours are closed once it has them.
type childEnds struct {
	stdio  [3]uintptr
	opened []uintptr
	tty    *os.File
}

func (c *childEnds) descriptors() []uintptr { return c.stdio[:] }

func (c *childEnds) close() {
	for _, fd := range c.opened {
		_ = syscall.Close(int(fd))
	}
	if c.tty != nil {
		_ = c.tty.Close()
	}
}

// connect gives the process its outputs and input and returns the child's ends, also when it fails half-way.
func (e *Engine) connect(p *Process) (*childEnds, error) {
	if p.command.Size != nil {
		return e.connectTerminal(p)
	}
	child := &childEnds{stdio: [3]uintptr{e.null.Fd()}}
	p.input = newInput(nil, false)
	for i, kind := range []outputKind{stdoutOutput, stderrOutput} {
		ours, theirs, err := outputPipe("output")
		if err != nil {
			return child, err
		}
		child.stdio[i+1], child.opened = theirs, append(child.opened, theirs)
		p.outputs = append(p.outputs, &pump{kind: kind, file: ours, size: pipeChunk, buffers: &e.buffers})
	}
	if p.command.Stdin {
		theirs, ours, err := inputPipe()
		if err != nil {
			return child, err
		}
		child.stdio[0], child.opened = theirs, append(child.opened, theirs)
		p.input = newInput(ours, false)
	}
	return child, nil
}

func (e *Engine) connectTerminal(p *Process) (*childEnds, error) {
	ours, tty, err := pty.Open()
	if err != nil {
		return &childEnds{}, err
	}
	fd := tty.Fd()
	child := &childEnds{stdio: [3]uintptr{fd, fd, fd}, tty: tty}
	p.terminal, p.input = ours, newInput(ours, true)
	p.outputs = []*pump{{kind: terminalOutput, file: ours, size: terminalChunk, buffers: &e.buffers}}
	if err := unix.SetNonblock(int(fd), false); err != nil {
		return child, err
	}
	if user := p.command.User; user.Switch {
		_ = tty.Chown(int(user.UID), -1) // as login(1) does, so that programs may reopen their terminal
	}
	return child, resize(ours, p.command.Size)
}

var errNoTerminal = connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal"))

// resize tells the terminal's size to its processes; 0 means the usual 80 × 24.
func resize(terminal *os.File, size *pb.PTY_Size) error {
	if terminal == nil {
		return errNoTerminal
	}
	window := unix.Winsize{Col: 80, Row: 24}
	if cols := size.GetCols(); cols > 0 {
		window.Col = uint16(min(cols, math.MaxUint16))
	}
	if rows := size.GetRows(); rows > 0 {
		window.Row = uint16(min(rows, math.MaxUint16))
	}
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &window) })
	return errors.Join(err, failed)
}
