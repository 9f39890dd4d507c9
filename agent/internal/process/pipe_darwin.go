package process

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func pipe() (fds [2]int, err error) {
	syscall.ForkLock.RLock() // no fork between pipe and close-on-exec
	defer syscall.ForkLock.RUnlock()
	if err = unix.Pipe(fds[:]); err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	return fds, err
}

func outputPipe(name string) (*os.File, uintptr, error) {
	fds, err := pipe()
	if err != nil {
		return nil, 0, err
	}
	_ = unix.SetNonblock(fds[0], true)
	return os.NewFile(uintptr(fds[0]), name), uintptr(fds[1]), nil
}

func inputPipe() (uintptr, *os.File, error) {
	fds, err := pipe()
	if err != nil {
		return 0, nil, err
	}
	_ = unix.SetNonblock(fds[1], true)
	return uintptr(fds[0]), os.NewFile(uintptr(fds[1]), "stdin"), nil
}
