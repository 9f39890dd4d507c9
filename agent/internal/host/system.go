package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// maxKept bounds a file of which the guest's additions are kept.
const maxKept = 64 << 10

// System is the part of the machine that /init configures.
type System struct {
	Etc         string
	DBus        string // its folder, which may hold a copy of the machine id
	SetHostname func(string) error
	MakeFolder  func(string) // for a default working directory that an image names and lacks; or nil

	written map[string]string // by /init, last
}

func (s *System) configure(q *initRequest) error {
	var failures []error
	if q.Hostname != nil && *q.Hostname != "" {
		if err := s.SetHostname(*q.Hostname); err != nil {
			failures = append(failures, fmt.Errorf("hostname: %w", err))
		}
		failures = append(failures, s.write("hostname", *q.Hostname+"\n"))
	}
	if s.MakeFolder != nil && q.DefaultWorkdir != nil && *q.DefaultWorkdir != "" {
		s.MakeFolder(*q.DefaultWorkdir)
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
// here) or a pipe (which would keep the agent waiting) gives way to a file. What the guest has made of a file stays
// where nothing new is to be said, and what it has added to one stays below.
func (s *System) write(name, content string) error {
	before, known := s.written[name]
	if known && before == content {
		return nil
	}
	path, added := filepath.Join(s.Etc, name), ""
	switch info, err := os.Lstat(path); {
	case err != nil:
	case !info.Mode().IsRegular():
		if err := os.Remove(path); err != nil {
			return err
		}
	case known && info.Size() <= maxKept:
		if current, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(current), before) {
			added = string(current[len(before):])
		}
	}
	if err := os.MkdirAll(s.Etc, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(content+added), 0o644); err != nil {
		return err
	}
	if s.written == nil {
		s.written = map[string]string{}
	}
	s.written[name] = content
	return nil
}
