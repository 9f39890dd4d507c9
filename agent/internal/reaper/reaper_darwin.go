package reaper

import (
	"context"
	"errors"
	"syscall"
)

// Run waits for ctx: without orphans to adopt, every child is awaited by itself.
func (r *Reaper) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (r *Reaper) await(pid int) {
	var status syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(pid, &status, 0, nil); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	r.mu.Lock()
	c := r.children[pid]
	delete(r.children, pid)
	r.mu.Unlock()
	if c != nil {
		c.exited(status)
	}
}

func (r *Reaper) started(pid int) { go r.await(pid) }
