package reaper

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Run reaps until ctx ends. It peeks at a dead child (WNOWAIT) before it collects it: between the two the pid stays a
// zombie and cannot be given to a new process, so a status can never reach the wrong owner.
func (r *Reaper) Run(ctx context.Context) error {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	defer signal.Stop(died)
	for {
		pid, err := peek()
		switch {
		case err != nil && !errors.Is(err, unix.ECHILD):
			return err
		case pid != 0:
			r.collect(pid)
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-died:
		}
	}
}

// peek returns the pid of a dead child without collecting it, or 0.
func peek() (int, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return childOf(&info), err
	}
}

// collect hands the status of the zombie pid to its owner and buries an orphan. A pid nobody owns may belong to a Start
// that has not registered it yet, so those under way are waited for first.
func (r *Reaper) collect(pid int) {
	if r.bury(pid, false) {
		return
	}
	r.starting.Lock()
	defer r.starting.Unlock()
	r.bury(pid, true)
}

// bury collects pid if it is dead and owned, or dead and an orphan when orphans are allowed. The table and the wait
// change together, so that Signal never meets a collected pid.
func (r *Reaper) bury(pid int, orphan bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.children[pid]
	if c == nil && !orphan {
		return false
	}
	var status syscall.WaitStatus
	if got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); err != nil || got != pid {
		return c != nil
	}
	delete(r.children, pid)
	if c != nil {
		c.exited(status)
	}
	return true
}

// started has nothing to do here: Run collects every child.
func (r *Reaper) started(int) {}
