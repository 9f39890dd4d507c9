package restore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	pb "aenv.dev/agent/internal/gen/process"
)

// renewKeys gives the machine SSH host keys of its own in place of those it shares with the snapshot's other children.
func (r *Restorer) renewKeys(ctx context.Context) []string {
	keys, _ := filepath.Glob(filepath.Join(r.etc, "ssh/ssh_host_*"))
	if len(keys) == 0 {
		return nil
	}
	var failures []string
	for _, key := range keys {
		if err := os.Remove(key); err != nil {
			failures = append(failures, fmt.Sprintf("an SSH host key is shared with other sandboxes: %v", err))
		}
	}
	if err := r.run(ctx, &pb.ProcessConfig{Cmd: "ssh-keygen", Args: []string{"-A"}}); err != nil {
		failures = append(failures, fmt.Sprintf("the SSH host keys were removed and there are no new ones: ssh-keygen: %v", err))
	}
	r.reloadDaemon()
	return failures
}

// reloadDaemon makes a running sshd read its keys again.
func (r *Restorer) reloadDaemon() {
	content, err := os.ReadFile(r.sshd)
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid <= 1 {
		return
	}
	if name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm")); err == nil && string(name) == "sshd\n" {
		_ = unix.Kill(pid, unix.SIGHUP)
	}
}
