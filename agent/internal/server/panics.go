package server

import "fmt"

type panicError struct{ cause any }

func (p panicError) Error() string { return fmt.Sprintf("the agent failed on this call: %v", p.cause) }
