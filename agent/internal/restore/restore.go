// Package restore makes a restored sandbox its own: new SSH host keys, the image's hooks, and the processes that asked to
// be told. What an outsider cannot mend, the state of processes that did not ask, stays as the snapshot had it.
package restore

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"aenv.dev/agent/internal/logs"
)

// workTime is what keys and hooks have together, so that the host need not wait for long.
const workTime = 6 * time.Second

// Mode says whether the sandbox is a copy with a new identity or the same one again.
type Mode string

const (
	Fork   Mode = "fork"
	Resume Mode = "resume"
)

// Event is one restore as processes and hooks are told of it. Away is in seconds.
type Event struct {
	Mode      Mode    `json:"mode"`
	SandboxID string  `json:"sandboxId"`
	LifeID    string  `json:"lifeId"`
	Away      float64 `json:"away"`
}

func (e *Event) environment() map[string]string {
	return map[string]string{
		"AENV_RESTORE":    string(e.Mode),
		"AENV_SANDBOX_ID": e.SandboxID,
		"AENV_LIFE_ID":    e.LifeID,
		"AENV_AWAY":       strconv.FormatFloat(e.Away, 'f', 3, 64),
	}
}

// Restorer does after a restore what the guest itself must do. Zero or one restore is under way.
type Restorer struct {
	etc     string // /etc
	folder  string // of the socket
	sshd    string // the daemon's pid file
	log     *logs.Ring
	run     Runner
	notices *notices
	mu      sync.Mutex
}

// New returns the restorer of a machine whose configuration is in etc and whose runtime files are in run.
func New(etc, run string, log *logs.Ring, runner Runner) *Restorer {
	return &Restorer{
		etc: etc, folder: filepath.Join(run, "aenv"), sshd: filepath.Join(run, "sshd.pid"),
		log: log, run: runner, notices: newNotices(log),
	}
}

// Start lets processes register, from its return until ctx ends. A machine where it cannot listen works without.
func (r *Restorer) Start(ctx context.Context) {
	listener, err := r.notices.listen(r.folder)
	if err != nil {
		r.log.System("error", fmt.Sprintf("processes cannot register for restores: %v", err), nil)
		return
	}
	go r.notices.serve(ctx, listener)
}

// Restored handles one restore to its end and returns what could not be done, which is also in the log.
func (r *Restorer) Restored(ctx context.Context, event Event) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	work, cancel := context.WithTimeout(ctx, workTime)
	defer cancel()
	var failures []string
	if event.Mode == Fork {
		failures = append(failures, r.renewKeys(work)...)
	}
	failures = append(failures, r.runHooks(work, event.environment())...)
	line, err := json.Marshal(event)
	if err != nil {
		failures = append(failures, err.Error())
	} else {
		failures = append(failures, r.notices.tell(append(line, '\n'))...)
	}
	for _, failure := range failures {
		r.log.System("error", failure, nil)
	}
	return failures
}
