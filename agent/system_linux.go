package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// harden makes the agent undumpable and, where it is not PID 1, the adopter of its descendants' orphans.
func harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot protect the agent's memory (PR_SET_DUMPABLE): %w", err)
	}
	if os.Getpid() == 1 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot adopt orphans (PR_SET_CHILD_SUBREAPER): %w", err)
	}
	return nil
}

// setHostname does nothing where the engine has set the name already: a guest's root may lack the right to.
func setHostname(name string) error {
	if current, err := os.Hostname(); err == nil && current == name {
		return nil
	}
	return unix.Sethostname([]byte(name))
}
