package wire

import (
	"net/http"
	"strconv"
	"time"
)

const defaultKeepAlive = 90 * time.Second

// KeepAlive is the client's wish for signs of life, in seconds.
func KeepAlive(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Keepalive-Ping-Interval"))
	if err != nil || seconds < 1 || seconds > 24*3600 {
		return defaultKeepAlive
	}
	return time.Duration(seconds) * time.Second
}
