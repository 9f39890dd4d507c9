package main

import "errors"

// harden: macOS has neither dumpable flags nor subreapers, and the agent is never PID 1 there.
func harden() error { return nil }

func setHostname(string) error { return errors.New("not on macOS") }
