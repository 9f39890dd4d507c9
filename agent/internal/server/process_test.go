package server

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pb "aenv.dev/agent/internal/gen/process"
)

func TestStart(t *testing.T) {
	cases := []struct {
		name, script, stdout, stderr, status string
		code                                 int32
		exited                               bool
	}{
		{"success", "echo out; echo err >&2", "out\n", "err\n", "exit status 0", 0, true},
		{"failure", "exit 3", "", "", "exit status 3", 3, true},
		{"signal", "kill -9 $$", "", "", "signal: killed", -1, false},
		{"environment", `echo "$FOO $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID"`, "bar true sbx1 base\n", "", "exit status 0", 0, true},
		{"stdin is empty", "cat; echo done", "done\n", "", "exit status 0", 0, true},
		{"no terminal", "ps -o tty= -p $$ | tr -d ' '", "?\n", "", "exit status 0", 0, true},
		{"binary", `printf '\377\0\n'`, "\xff\x00\n", "", "exit status 0", 0, true},
	}
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		client := s.processes(codec)
		for _, c := range cases {
			r := launch(t, client, bash(c.script), 0).rest()
			if r.err != nil || r.pid == 0 || r.stdout.String() != c.stdout || r.stderr.String() != c.stderr {
				t.Errorf("%s: pid %d, stdout %q, stderr %q, error %v", c.name, r.pid, r.stdout.String(), r.stderr.String(), r.err)
			}
			if r.end.GetExitCode() != c.code || r.end.GetExited() != c.exited || r.end.GetStatus() != c.status ||
				(r.end.GetError() == c.status) != (c.code != 0) {
				t.Errorf("%s: end %v", c.name, r.end)
			}
		}
	})
}

func TestWorkingDirectoryAndHome(t *testing.T) {
	s := start(t)
	sub := filepath.Join(s.home, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	for cwd, want := range map[string]string{"": s.home, "sub": sub, "~/sub": sub, "/": "/"} {
		request := bash(`pwd; test "$HOME" = ` + s.home)
		if cwd != "" {
			request.Process.Cwd = &cwd
		}
		r := launch(t, s.processes(), request, 0).rest()
		if r.stdout.String() != want+"\n" || r.end.GetExitCode() != 0 {
			t.Errorf("cwd %q: %q, %v, want %q", cwd, r.stdout.String(), r.end, want)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	s := start(t)
	config := func(change func(*pb.ProcessConfig)) *pb.StartRequest {
		request := bash("true")
		change(request.Process)
		return request
	}
	cases := []struct {
		name    string
		request *pb.StartRequest
		code    connect.Code
		reason  string
	}{
		{"a missing cwd", config(func(c *pb.ProcessConfig) { c.Cwd = proto.String("/nope") }), connect.CodeInvalidArgument, ""},
		{"a file as cwd", config(func(c *pb.ProcessConfig) { c.Cwd = proto.String("/etc/passwd") }), connect.CodeInvalidArgument, ""},
		{"a missing command", config(func(c *pb.ProcessConfig) { c.Cmd = "no-such-command" }), connect.CodeInvalidArgument, "command-not-found"},
		{"a missing program", config(func(c *pb.ProcessConfig) { c.Cmd = "/no/such" }), connect.CodeInvalidArgument, "command-not-found"},
		{"a directory as program", config(func(c *pb.ProcessConfig) { c.Cmd = "/etc" }), connect.CodePermissionDenied, "command-not-executable"},
		{"NUL in an argument", config(func(c *pb.ProcessConfig) { c.Args = []string{"a\x00b"} }), connect.CodeInvalidArgument, ""},
		{"= in a variable's name", config(func(c *pb.ProcessConfig) { c.Envs = map[string]string{"A=B": "c"} }), connect.CodeInvalidArgument, ""},
		{"no process", &pb.StartRequest{}, connect.CodeInvalidArgument, ""},
	}
	for _, c := range cases {
		if r := launch(t, s.processes(), c.request, 0).rest(); r.pid != 0 || connect.CodeOf(r.err) != c.code {
			t.Errorf("%s: pid %d, %v, want %v", c.name, r.pid, r.err, c.code)
		} else if got := reason(r.err); got != c.reason {
			t.Errorf("%s: reason %q, want %q", c.name, got, c.reason)
		}
	}
}

// reason is what tells clients the exit code of a shell that could not start the command.
func reason(err error) string {
	var refused *connect.Error
	if !errors.As(err, &refused) {
		return ""
	}
	return refused.Meta().Get("X-Aenv-Reason")
}

func TestTimeoutKillsTheWholeTree(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		script := `trap "" TERM; setsid sleep 1000 & echo $!; (trap "" TERM; sleep 1000) & echo $!; wait`
		stream := launch(t, s.processes(codec), bash(script), 700*time.Millisecond)
		pid := stream.pid(t)
		r := stream.rest()
		wantCode(t, "timeout", r.err, connect.CodeDeadlineExceeded)
		if r.end != nil {
			t.Errorf("an end event beside the timeout: %v", r.end)
		}
		pids := append(strings.Fields(r.stdout.String()), strconv.Itoa(int(pid)))
		if len(pids) != 3 {
			t.Fatalf("pids %v", pids)
		}
		for _, text := range pids {
			pid, _ := strconv.Atoi(text)
			eventually(t, text+" is dead", func() bool { return !alive(pid) })
		}
	})
}

func TestTimeoutHoldsWithoutItsClient(t *testing.T) {
	s := start(t)
	stream := launch(t, s.processes(), bash("sleep 1000"), 300*time.Millisecond)
	pid := int(stream.pid(t))
	stream.cancel()
	eventually(t, "the process is dead", func() bool { return !alive(pid) })
}

func TestSignals(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		client := s.processes(codec)
		send := func(pid uint32, signal pb.Signal) error {
			_, err := client.SendSignal(t.Context(), connect.NewRequest(&pb.SendSignalRequest{Process: byPid(pid), Signal: signal}))
			return err
		}
		stream := launch(t, client, bash(`trap "echo term; exit 4" TERM; echo ready; while :; do sleep 0.01; done`), 0)
		pid := stream.pid(t)
		stream.next() // ready
		wantCode(t, "an unknown signal", send(pid, pb.Signal_SIGNAL_UNSPECIFIED), connect.CodeInvalidArgument)
		if err := send(pid, pb.Signal_SIGNAL_SIGTERM); err != nil {
			t.Fatal(err)
		}
		if r := stream.rest(); r.end.GetExitCode() != 4 {
			t.Errorf("after SIGTERM: %v", r.end)
		}
		stream = launch(t, client, bash(`setsid sleep 1000 & echo $!; wait`), 0)
		pid = stream.pid(t)
		child, _ := stream.next()
		if err := send(pid, pb.Signal_SIGNAL_SIGKILL); err != nil {
			t.Fatal(err)
		}
		if r := stream.rest(); r.end.GetStatus() != "signal: killed" {
			t.Errorf("after SIGKILL: %v", r.end)
		}
		grandchild, _ := strconv.Atoi(strings.TrimSpace(string(child.GetData().GetStdout())))
		eventually(t, "the grandchild is dead", func() bool { return grandchild > 0 && !alive(grandchild) })
		wantCode(t, "a dead process", send(pid, pb.Signal_SIGNAL_SIGKILL), connect.CodeNotFound)
	})
}

func TestConnect(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		client := s.processes(codec)
		request := bash("read line; echo $line; exit 9")
		request.Stdin, request.Tag = nil, proto.String("mine") // absent: with stdin
		first := launch(t, client, request, 0)
		pid := first.pid(t)
		first.cancel() // the process survives its client
		second, third := attach(t, client, pid), attach(t, client, pid)
		if second.pid(t) != pid || third.pid(t) != pid {
			t.Fatal("the start event names another pid")
		}
		if _, err := client.SendInput(t.Context(), connect.NewRequest(stdin(pid, "hello\n"))); err != nil {
			t.Fatal(err)
		}
		for _, stream := range []*events{second, third} {
			if r := stream.rest(); r.stdout.String() != "hello\n" || r.end.GetExitCode() != 9 {
				t.Errorf("follower: %q, %v", r.stdout.String(), r.end)
			}
		}
		if r := attach(t, client, pid).rest(); r.pid != pid || r.end.GetExitCode() != 9 {
			t.Errorf("a late follower: %d, %v, %v", r.pid, r.end, r.err)
		}
		wantCode(t, "an unknown pid", attach(t, client, 1<<30).rest().err, connect.CodeNotFound)
	})
}

func TestList(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		client := s.processes(codec)
		request := bash("sleep 1000")
		request.Tag, request.Process.Envs, request.Process.Cwd = proto.String("t1"), map[string]string{"A": "b"}, proto.String("/")
		stream := launch(t, client, request, 0)
		pid := stream.pid(t)
		list, err := client.List(t.Context(), connect.NewRequest(&pb.ListRequest{}))
		if err != nil || len(list.Msg.GetProcesses()) != 1 {
			t.Fatalf("list %v, %v", list, err)
		}
		if p := list.Msg.GetProcesses()[0]; p.GetPid() != pid || p.GetTag() != "t1" || !proto.Equal(p.GetConfig(), request.Process) {
			t.Errorf("listed %v", p)
		}
		byTag := &pb.ProcessSelector{Selector: &pb.ProcessSelector_Tag{Tag: "t1"}}
		if _, err := client.SendSignal(t.Context(), connect.NewRequest(&pb.SendSignalRequest{
			Process: byTag, Signal: pb.Signal_SIGNAL_SIGKILL,
		})); err != nil {
			t.Error(err)
		}
		stream.rest()
		if list, err := client.List(t.Context(), connect.NewRequest(&pb.ListRequest{})); err != nil || len(list.Msg.GetProcesses()) != 0 {
			t.Errorf("list after the end: %v, %v", list.Msg, err)
		}
	})
}

func TestKeepAlive(t *testing.T) {
	s := start(t)
	if r := launch(t, s.processes(), bash("sleep 1.5"), 0).rest(); r.keepalives != 1 {
		t.Errorf("%d keepalives in 1.5 s at one per second", r.keepalives)
	}
}
