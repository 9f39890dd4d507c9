package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// System is the part of the machine that /init configures.
type System struct {
	Etc         string
	DBus        string // its folder, which may hold a copy of the machine id
	SetHostname func(string) error
}

func (s *System) configure(q *initRequest) error {
	var failures []error
	if q.Hostname != nil && *q.Hostname != "" {
		if err := s.SetHostname(*q.Hostname); err != nil {
			failures = append(failures, fmt.Errorf("hostname: %w", err))
		}
		failures = append(failures, s.write("hostname", *q.Hostname+"\n"))
	}
	if q.Hosts != nil {
		failures = append(failures, s.write("hosts", *q.Hosts))
	}
	if q.DNSServers != nil {
		failures = append(failures, s.resolver(*q.DNSServers))
	}
	if q.MachineID != nil && *q.MachineID != "" {
		failures = append(failures, s.machineID(*q.MachineID+"\n"))
	}
	return errors.Join(failures...)
}

func (s *System) machineID(content string) error {
	err := s.write("machine-id", content)
	copied := filepath.Join(s.DBus, "machine-id")
	if info, missing := os.Lstat(copied); missing == nil && info.Mode().IsRegular() {
		err = errors.Join(err, os.WriteFile(copied, []byte(content), 0o644))
	}
	return err
}

func (s *System) resolver(servers []string) error {
	var content strings.Builder
	for _, server := range servers {
		content.WriteString("nameserver " + server + "\n")
	}
	return s.write("resolv.conf", content.String())
}

// write replaces a file in place, because it may be a mount. A link (into a resolver's runtime folder, usually dangling
// here) or a pipe (which would keep the agent waiting) gives way to a file.
func (s *System) write(name, content string) error {
	path := filepath.Join(s.Etc, name)
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.Etc, 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
