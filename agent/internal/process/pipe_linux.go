package process

import (
	"os"

	"golang.org/x/sys/unix"
)

// outputPipe returns a pollable reading end and the plain descriptor of the writing end for the child: not making a
// File of the latter saves four system calls per command.
func outputPipe(name string) (*os.File, uintptr, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
		return nil, 0, err
	}
	return os.NewFile(uintptr(fds[0]), name), uintptr(fds[1]), nil
}

// inputPipe returns the descriptor of the reading end for the child and a pollable writing end.
func inputPipe() (uintptr, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return 0, nil, err
	}
	if err := unix.SetNonblock(fds[1], true); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
		return 0, nil, err
	}
	return uintptr(fds[0]), os.NewFile(uintptr(fds[1]), "stdin"), nil
}
