package reaper

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfoChild is the start of siginfo_t for SIGCHLD on 64-bit Linux.
type siginfoChild struct {
	signo, errno, code, _ int32
	pid                   int32
}

func childOf(info *unix.Siginfo) int { return int((*siginfoChild)(unsafe.Pointer(info)).pid) }
