package restore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"aenv.dev/agent/internal/logs"
)

const (
	socketName = "restore.sock"
	maxMembers = 1024
	maxAnswer  = 1024
	// maxOwed lines without an answer: nobody is listening, and the socket must not fill up.
	maxOwed  = 16
	patience = 2 * time.Second
)

// notices tells registered processes of restores over a Unix socket: its connections are part of the memory image, and
// unlike those of a port they tell who is at the other end.
type notices struct {
	log      *logs.Ring
	patience time.Duration
	mu       sync.Mutex
	members  map[*member]struct{}
}

// member is one registered process. It owes an answer for each line it was told.
type member struct {
	connection *net.UnixConn
	name       string
	mu         sync.Mutex
	owed       int
	answer     chan string // the answer to the newest line
}

func newNotices(log *logs.Ring) *notices {
	return &notices{log: log, patience: patience, members: map[*member]struct{}{}}
}

// listen opens the socket in folder for every user.
func (n *notices) listen(folder string) (*net.UnixListener, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	// An image may have it already, and not as it must be: root writes into it.
	if err := errors.Join(os.Chown(folder, os.Getuid(), os.Getgid()), os.Chmod(folder, 0o755)); err != nil {
		return nil, err
	}
	path := filepath.Join(folder, socketName)
	_ = os.Remove(path)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o666)
}

// serve registers who connects until ctx ends.
func (n *notices) serve(ctx context.Context, listener *net.UnixListener) {
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		connection, err := listener.AcceptUnix()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			n.log.System("error", fmt.Sprintf("cannot register a process for restores: %v", err), nil)
			time.Sleep(n.patience) // out of descriptors, for example
			continue
		}
		n.register(connection)
	}
}

func (n *notices) register(connection *net.UnixConn) {
	m := &member{connection: connection, name: nameOf(connection), answer: make(chan string, 1)}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.members) >= maxMembers {
		_ = connection.Close()
		n.log.System("error", fmt.Sprintf("%s is not told of restores: %d processes are already", m.name, maxMembers), nil)
		return
	}
	n.members[m] = struct{}{}
	go func() {
		m.listen()
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.members, m)
	}()
}

// tell sends a line to everybody, waits a moment for the answers, and returns the complaints.
func (n *notices) tell(line []byte) []string {
	n.mu.Lock()
	told := make([]*member, 0, len(n.members))
	for m := range n.members {
		told = append(told, m)
	}
	n.mu.Unlock()
	deadline := time.Now().Add(n.patience)
	for _, m := range told {
		m.send(line, deadline)
	}
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	var complaints []string
	expired := false
	for _, m := range told {
		if complaint := m.wait(late.C, &expired); complaint != "" {
			complaints = append(complaints, fmt.Sprintf("%s: %s", m.name, complaint))
		}
	}
	slices.Sort(complaints)
	return complaints
}

func (m *member) send(line []byte, deadline time.Time) {
	m.mu.Lock()
	m.owed++
	deaf := m.owed > maxOwed
	select {
	case <-m.answer: // of an earlier line
	default:
	}
	m.mu.Unlock()
	_ = m.connection.SetWriteDeadline(deadline)
	if _, err := m.connection.Write(line); err != nil || deaf {
		_ = m.connection.Close()
	}
}

func (m *member) wait(late <-chan time.Time, expired *bool) string {
	if !*expired {
		select {
		case answer, open := <-m.answer:
			return complaint(answer, open)
		case <-late:
			*expired = true
		}
	}
	select {
	case answer, open := <-m.answer:
		return complaint(answer, open)
	default:
		return "it did not answer in time"
	}
}

// complaint is what an answer says but "done". A process that ended needs no new randomness.
func complaint(answer string, open bool) string {
	if !open || answer == "done" {
		return ""
	}
	return answer
}

// listen reads answers until the process closes its end.
func (m *member) listen() {
	defer close(m.answer)
	defer m.connection.Close()
	lines := bufio.NewScanner(m.connection)
	lines.Buffer(make([]byte, 0, 64), maxAnswer)
	for lines.Scan() {
		m.mu.Lock()
		m.owed--
		if m.owed == 0 {
			m.answer <- strings.ToValidUTF8(strings.TrimSpace(lines.Text()), "\uFFFD")
		}
		ahead := m.owed < 0
		m.mu.Unlock()
		if ahead { // it talks without being asked
			return
		}
	}
}

// nameOf names the process at the other end as people know it: its pid and command.
func nameOf(connection *net.UnixConn) string {
	pid := peer(connection)
	if pid == 0 {
		return "a process"
	}
	command, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	return strings.TrimSpace(fmt.Sprintf("process %d %s", pid, strings.TrimSpace(strings.ToValidUTF8(string(command), ""))))
}
