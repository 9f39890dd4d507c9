package restore

import (
	"net"

	"golang.org/x/sys/unix"
)

// peer is the pid at the other end of a connection, or 0.
func peer(connection *net.UnixConn) int {
	raw, err := connection.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if credentials, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(credentials.Pid)
		}
	})
	return pid
}
