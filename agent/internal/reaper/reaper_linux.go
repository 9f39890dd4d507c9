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
//
// While there are children, a thread waits for them in the kernel, which is quicker than SIGCHLD; when ctx ends it stays
// there until the last of them is dead.
func (r *Reaper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		pid, err := peek(0)
		switch {
		case errors.Is(err, unix.ECHILD):
			r.idle(ctx)
		case err != nil:
			return err
		default:
			r.collect(pid)
		}
	}
	return ctx.Err()
}

// idle returns when there is a child: Start tells of its own, and SIGCHLD of an orphan that came dying.
func (r *Reaper) idle(ctx context.Context) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	defer signal.Stop(died)
	if _, err := peek(unix.WNOHANG); err == nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-died:
	case <-r.first:
	}
}

// peek waits for a dead child and returns its pid without collecting it; with WNOHANG the pid may be 0.
func peek(options int) (int, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
		if !errors.Is(err, unix.EINTR) {
			return childOf(&info), err
		}
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

// started wakes Run for the first child.
func (r *Reaper) started(int) {
	select {
	case r.first <- struct{}{}:
	default:
	}
}
