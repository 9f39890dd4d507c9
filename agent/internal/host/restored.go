package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"

	"aenv.dev/agent/internal/restore"
	"aenv.dev/agent/internal/settings"
)

// configure sets up the machine as the host asks; a new identity has a machine id of its own in any case.
func (h *Host) configure(q *initRequest, renewed bool) error {
	if h.System == nil {
		return nil
	}
	if renewed && (q.MachineID == nil || *q.MachineID == "") {
		q.MachineID = randomID()
	}
	return h.System.configure(q)
}

func randomID() *string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // it never fails, or ends the program
	id := hex.EncodeToString(raw[:])
	return &id
}

// begin starts the life that the request names. What the old one said is not for a new identity's log.
func (h *Host) begin(ctx context.Context, q *initRequest, misconfigured error) {
	event := restore.Event{Mode: restore.Resume, LifeID: q.LifeID, Away: q.Away}
	if !q.Resumed {
		event.Mode = restore.Fork
		h.Log.Clear()
	}
	h.failures = nil
	if misconfigured != nil {
		h.failures = []string{misconfigured.Error()}
		h.Log.System("error", misconfigured.Error(), nil)
	}
	h.Settings.Update(func(s *settings.Settings) {
		if !q.Resumed {
			forget(s)
		}
		q.apply(s)
		event.SandboxID = s.SandboxID
	})
	if h.Restorer != nil {
		h.failures = append(h.failures, h.Restorer.Restored(ctx, event)...)
	}
}

// forget drops the variables that a new identity does not inherit.
func forget(s *settings.Settings) {
	maps.DeleteFunc(s.EnvVars, func(name, _ string) bool {
		for _, secret := range s.SecretEnv {
			if name == secret {
				return true
			}
		}
		return false
	})
	s.SecretEnv = nil
}
