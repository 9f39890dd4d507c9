package server

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"aenv.dev/agent/internal/host"
	"aenv.dev/agent/internal/users"

	fspb "aenv.dev/agent/internal/gen/filesystem"
)

// accounts starts an agent with accounts of its own: alice (4242, also in group 4300) and "user" are known.
func accounts(t *testing.T) (*sandbox, string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	etc, home := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		"passwd": "user:x:4241:4241::" + home + ":/bin/sh\nalice:x:4242:4242::" + home + ":/bin/sh\n",
		"group":  "wheel:x:4300:bob,alice\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for dir := home; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return serve(t, home, Config{
		Users: users.NewPasswd(etc), Disk: "/", Sync: func() {},
		Run: t.TempDir(), System: &host.System{Etc: etc, SetHostname: func(string) error { return nil }},
	}), etc
}

func TestProcessesRunAsTheirUser(t *testing.T) {
	s, _ := accounts(t)
	cases := []struct{ user, id, environment string }{
		{"", "4241 4241 4241", "user user"},
		{"alice", "4242 4242 4242 4300", "alice alice"},
		{"4242", "4242 4242 4242 4300", "alice alice"},
		{"5555", "5555 5555 5555", "5555 5555"},
		{"root", "0 0 0", "root root"},
	}
	for _, c := range cases {
		request := connect.NewRequest(bash(`echo $(id -u) $(id -g) $(id -G); echo $USER $LOGNAME`))
		if c.user != "" {
			request.Header().Set("Authorization", as(c.user))
		}
		stream, err := s.processes().Start(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for stream.Receive() {
			out += string(stream.Msg().GetEvent().GetData().GetStdout())
		}
		if want := c.id + "\n" + c.environment + "\n"; out != want {
			t.Errorf("user %q: %q, want %q, %v", c.user, out, want, stream.Err())
		}
	}
}

func TestAnUnknownUserIsRefused(t *testing.T) {
	s, _ := accounts(t)
	request := connect.NewRequest(bash("true"))
	request.Header().Set("Authorization", as("root123"))
	stream, err := s.processes().Start(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if stream.Receive() || stream.Err().Error() != "unauthenticated: invalid username: 'root123'" {
		t.Errorf("Start: %v", stream.Err())
	}
	stat := connect.NewRequest(&fspb.StatRequest{Path: "."})
	stat.Header().Set("Authorization", as("root123"))
	_, err = s.filesystem().Stat(t.Context(), stat)
	wantCode(t, "Stat", err, connect.CodeUnauthenticated)
	if code, _ := s.call(t, http.MethodGet, fileURL("x", "username", "root123"), "", nil); code != http.StatusUnauthorized {
		t.Errorf("download: %d", code)
	}
	s.init(t, `{"defaultUser":"gone"}`)
	_, err = s.filesystem().Stat(t.Context(), connect.NewRequest(&fspb.StatRequest{Path: "."}))
	wantCode(t, "Stat as a default user without an account", err, connect.CodeUnauthenticated)
}

func TestNewFilesBelongToTheUser(t *testing.T) {
	s, _ := accounts(t)
	code, answer := s.call(t, http.MethodPost, fileURL("deep/er/file", "username", "alice"), "x", http.Header{"Content-Type": {octets}})
	if code != http.StatusOK {
		t.Fatalf("upload: %d %s", code, answer)
	}
	for _, path := range []string{"deep", "deep/er", "deep/er/file"} {
		request := connect.NewRequest(&fspb.StatRequest{Path: path})
		request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("alice:")))
		entry, err := s.filesystem().Stat(t.Context(), request)
		if err != nil || entry.Msg.GetEntry().GetOwner() != "alice" || entry.Msg.GetEntry().GetGroup() != "4242" {
			t.Errorf("%s: %v, %v", path, entry, err)
		}
	}
}

func TestInitConfiguresTheMachine(t *testing.T) {
	s, etc := accounts(t)
	if err := os.Symlink("/run/nowhere/resolv.conf", filepath.Join(etc, "resolv.conf")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.init(t, `{"hostname":"box","hosts":"127.0.0.1 localhost box\n","dnsServers":["10.0.0.1","::1"]}`)
	}
	for name, want := range map[string]string{
		"hostname": "box\n", "hosts": "127.0.0.1 localhost box\n", "resolv.conf": "nameserver 10.0.0.1\nnameserver ::1\n",
	} {
		if got := read(t, filepath.Join(etc, name)); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
}

func TestWhatTheGuestHasMadeOfAFileIsKept(t *testing.T) {
	s, etc := accounts(t)
	hosts := filepath.Join(etc, "hosts")
	s.init(t, `{"hosts":"10.0.0.2 box\n","dnsServers":["10.0.0.1"]}`)
	resolv := filepath.Join(etc, "resolv.conf")
	for path, content := range map[string]string{hosts: "10.0.0.2 box\n1.2.3.4 db\n", resolv: "nameserver 9.9.9.9\n"} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.init(t, `{"hosts":"10.0.0.6 box\n","dnsServers":["10.0.0.1"]}`)
	if got := read(t, hosts); got != "10.0.0.6 box\n1.2.3.4 db\n" {
		t.Errorf("the host's part changed, the guest's was added: %q", got)
	}
	if got := read(t, resolv); got != "nameserver 9.9.9.9\n" {
		t.Errorf("nothing new was said: %q", got)
	}
	if err := os.WriteFile(hosts, []byte("mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.init(t, `{"hosts":"10.0.0.8 box\n"}`)
	if got := read(t, hosts); got != "10.0.0.8 box\n" {
		t.Errorf("something else was said, and nothing of it is left: %q", got)
	}
}

func TestAFullDiskIsToldAndLeavesNoPart(t *testing.T) {
	s, _ := accounts(t)
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	defer unix.Unmount(small, 0)
	for _, name := range []string{"new", "old"} {
		path := filepath.Join(small, name)
		if name == "old" {
			if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		body := strings.Repeat("x", 8<<20)
		code, answer := s.call(t, http.MethodPost, fileURL(path), body, http.Header{"Content-Type": {octets}})
		if code != http.StatusInsufficientStorage || !strings.Contains(answer, "not enough disk space") {
			t.Errorf("%s: %d %s", name, code, answer)
		}
		if info, err := os.Stat(path); err == nil && (name == "new" || info.Size() > 0) {
			t.Errorf("%s: %d bytes are left", name, info.Size())
		}
	}
	if code, answer := s.call(t, http.MethodPost, fileURL(small+"/fits"), "x", http.Header{"Content-Type": {octets}}); code != 200 {
		t.Errorf("a file that fits: %d %s", code, answer)
	}
}

func TestMoveBetweenFileSystems(t *testing.T) {
	s, _ := accounts(t)
	other := t.TempDir()
	if err := unix.Mount("tmpfs", other, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	defer unix.Unmount(other, 0)
	s.tree(t, "d/sub/file", "d/empty/")
	s.link(t, "sub/file", "d/link")
	if err := os.Chown(filepath.Join(s.home, "d/sub/file"), 4242, 4300); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chmod(filepath.Join(s.home, "d/sub"), 0o2710); err != nil {
		t.Fatal(err)
	}
	move := &fspb.MoveRequest{Source: "d", Destination: other + "/e/f"}
	if _, err := s.filesystem().Move(t.Context(), connect.NewRequest(move)); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(other+"/e/f/link", &stat); err != nil || stat.Uid != 4242 || stat.Gid != 4300 || stat.Mode&0o7777 != 0o640 {
		t.Errorf("the file through its link: %v, uid %d, gid %d, mode %o", err, stat.Uid, stat.Gid, stat.Mode)
	}
	if read(t, other+"/e/f/sub/file") != "d/sub/file" {
		t.Error("the content is another")
	}
	if err := unix.Stat(other+"/e/f/sub", &stat); err != nil || stat.Mode&0o7777 != 0o2710 {
		t.Errorf("the directory: %v, mode %o", err, stat.Mode)
	}
	if left, _ := filepath.Glob(other + "/e/.move*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Lstat(filepath.Join(s.home, "d")); err == nil {
		t.Error("the source is still there")
	}
}
