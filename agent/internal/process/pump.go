package process

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"aenv.dev/agent/internal/logs"
)

const (
	pipeChunk     = 32 << 10
	terminalChunk = 16 << 10
	// maxPending bounds what can still be in a pipe when its process has exited (fs.pipe-max-size).
	maxPending = 1 << 20
)

// pump carries one output of a process to its followers and to the log.
type pump struct {
	kind    outputKind
	file    *os.File
	size    int
	buffers *sync.Pool  // of *[pipeChunk]byte: idle outputs hold none
	lines   *logs.Lines // nil: not logged
}

// run reads to the end. When the process has exited but something else keeps its output open, run calls done after
// what was written before, and goes on emptying the output for whoever holds it.
func (u *pump) run(publish func(outputKind, []byte), done func() bool) {
	err := u.read(publish)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		u.readPending(publish)
		done()
		_ = u.file.SetReadDeadline(time.Time{})
		_ = u.read(func(outputKind, []byte) {})
		u.close()
		return
	}
	u.close()
	done()
}

// expire makes a pending and every later read fail.
func (u *pump) expire() { _ = u.file.SetReadDeadline(time.Unix(1, 0)) }

func (u *pump) close() {
	if u.lines != nil {
		u.lines.Close()
	}
	_ = u.file.Close()
}

func (u *pump) read(publish func(outputKind, []byte)) error {
	raw, err := u.file.SyscallConn()
	if err != nil {
		return err
	}
	for open := true; open && err == nil; {
		err = raw.Read(func(fd uintptr) bool {
			var ready bool
			_, open, ready = u.readOnce(int(fd), publish)
			return ready
		})
	}
	return err
}

// readPending takes what is in the pipe now.
func (u *pump) readPending(publish func(outputKind, []byte)) {
	raw, err := u.file.SyscallConn()
	if err != nil {
		return
	}
	for total := 0; total < maxPending; {
		n, open, ready := 0, false, false
		if raw.Control(func(fd uintptr) { n, open, ready = u.readOnce(int(fd), publish) }) != nil || !open || !ready {
			return
		}
		total += n
	}
}

// readOnce reads one chunk of a non-blocking descriptor. Not ready: there is nothing to read yet.
func (u *pump) readOnce(fd int, publish func(outputKind, []byte)) (n int, open, ready bool) {
	buffer := u.buffers.Get().(*[pipeChunk]byte)
	defer u.buffers.Put(buffer)
	for {
		n, err := syscall.Read(fd, buffer[:u.size])
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, true, false
		case err != nil || n <= 0: // a terminal without processes answers EIO
			return 0, false, true
		}
		if u.lines != nil {
			u.lines.Write(buffer[:n])
		}
		publish(u.kind, buffer[:n])
		return n, true, true
	}
}
