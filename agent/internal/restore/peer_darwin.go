package restore

import "net"

func peer(*net.UnixConn) int { return 0 }
