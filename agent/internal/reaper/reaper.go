// Package reaper starts children and collects everything that dies below the agent: its children's statuses go to
// their owners, orphans (adopted by PID 1 or a subreaper) are buried.
package reaper

import (
	"os"
	"sync"
	"syscall"
)

// Reaper owns every child of this process. Nothing else in the process may wait for children.
type Reaper struct {
	starting sync.RWMutex // read-held from fork to registration
	mu       sync.Mutex
	children map[int]*child
	first    chan struct{} // there may be a child to wait for
}

type child struct{ exited func(syscall.WaitStatus) }

// New returns a reaper; Run makes it work.
func New() *Reaper { return &Reaper{children: map[int]*child{}, first: make(chan struct{}, 1)} }

// Start forks and executes. exited is called once, with the table locked: it must not block or call back.
func (r *Reaper) Start(
	path string, argv []string, attr *syscall.ProcAttr, exited func(syscall.WaitStatus),
) (int, error) {
	r.starting.RLock()
	defer r.starting.RUnlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.children[pid] = &child{exited: exited}
	r.mu.Unlock()
	r.started(pid)
	return pid, nil
}

// Signal sends to the process group that a child leads. A collected child's pid may be somebody else's by now: for it
// the answer is os.ErrProcessDone.
func (r *Reaper) Signal(pid int, signal syscall.Signal) error {
	var err error
	if held := r.Hold(pid, func() { err = syscall.Kill(-pid, signal) }); held != nil {
		return held
	}
	return err
}

// Hold calls act while the child's pid cannot be collected and reused, or fails with os.ErrProcessDone.
func (r *Reaper) Hold(pid int, act func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[pid] == nil {
		return os.ErrProcessDone
	}
	act()
	return nil
}
