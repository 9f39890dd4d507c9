package server

import (
	"fmt"
	"strings"

	"aenv.dev/agent/internal/logs"
)

// panicError is the failure of a call whose handler panicked.
type panicError struct{ cause any }

func (p panicError) Error() string { return fmt.Sprintf("the agent failed on this call: %v", p.cause) }

// complaints carries the HTTP server's own messages into the log ring: nobody need read the agent's stderr.
type complaints struct{ ring *logs.Ring }

func (c complaints) Write(message []byte) (int, error) {
	cut := message[:min(len(message), logs.MaxLine)]
	c.ring.System("error", strings.ToValidUTF8(strings.TrimSpace(string(cut)), "\uFFFD"), nil)
	return len(message), nil
}
