package server

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pb "aenv.dev/agent/internal/gen/process"
	"aenv.dev/agent/internal/gen/process/processconnect"
)

// result is what a stream of events told.
type result struct {
	pid                 uint32
	stdout, stderr, pty bytes.Buffer
	end                 *pb.ProcessEvent_EndEvent
	keepalives          int
	err                 error
}

// events is a server stream of either method, and its cancellation.
type events struct {
	next   func() (*pb.ProcessEvent, bool)
	err    func() error
	cancel context.CancelFunc
}

func bash(script string) *pb.StartRequest {
	return &pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", script}}, Stdin: proto.Bool(false),
	}
}

func launch(t *testing.T, client processconnect.ProcessClient, message *pb.StartRequest, timeout time.Duration) *events {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	request := connect.NewRequest(message)
	if timeout > 0 {
		request.Header().Set("Connect-Timeout-Ms", strconv.FormatInt(timeout.Milliseconds(), 10))
	}
	request.Header().Set("Keepalive-Ping-Interval", "1")
	stream, err := client.Start(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	return &events{cancel: cancel, err: stream.Err, next: func() (*pb.ProcessEvent, bool) {
		ok := stream.Receive()
		return stream.Msg().GetEvent(), ok
	}}
}

func attach(t *testing.T, client processconnect.ProcessClient, pid uint32) *events {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := client.Connect(ctx, connect.NewRequest(&pb.ConnectRequest{Process: byPid(pid)}))
	if err != nil {
		t.Fatal(err)
	}
	return &events{cancel: cancel, err: stream.Err, next: func() (*pb.ProcessEvent, bool) {
		ok := stream.Receive()
		return stream.Msg().GetEvent(), ok
	}}
}

// pid reads the start event, which must come first.
func (e *events) pid(t *testing.T) uint32 {
	t.Helper()
	event, ok := e.next()
	if !ok || event.GetStart() == nil {
		t.Fatalf("the first event is %v (%v), want a start", event, e.err())
	}
	return event.GetStart().GetPid()
}

// rest reads to the end of the stream.
func (e *events) rest() *result {
	defer e.cancel()
	r := &result{}
	for {
		event, ok := e.next()
		if !ok {
			r.err = e.err()
			return r
		}
		switch kind := event.GetEvent().(type) {
		case *pb.ProcessEvent_Start:
			r.pid = kind.Start.GetPid()
		case *pb.ProcessEvent_Data:
			r.stdout.Write(kind.Data.GetStdout())
			r.stderr.Write(kind.Data.GetStderr())
			r.pty.Write(kind.Data.GetPty())
		case *pb.ProcessEvent_End:
			r.end = kind.End
		case *pb.ProcessEvent_Keepalive:
			r.keepalives++
		}
	}
}

func byPid(pid uint32) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: pid}}
}

func stdin(pid uint32, data string) *pb.SendInputRequest {
	return &pb.SendInputRequest{
		Process: byPid(pid), Input: &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte(data)}},
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

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
	}{
		{"a missing cwd", config(func(c *pb.ProcessConfig) { c.Cwd = proto.String("/nope") }), connect.CodeInvalidArgument},
		{"a file as cwd", config(func(c *pb.ProcessConfig) { c.Cwd = proto.String("/etc/passwd") }), connect.CodeInvalidArgument},
		{"a missing command", config(func(c *pb.ProcessConfig) { c.Cmd = "no-such-command" }), connect.CodeInvalidArgument},
		{"a missing program", config(func(c *pb.ProcessConfig) { c.Cmd = "/no/such" }), connect.CodeInvalidArgument},
		{"a directory as program", config(func(c *pb.ProcessConfig) { c.Cmd = "/etc" }), connect.CodePermissionDenied},
		{"NUL in an argument", config(func(c *pb.ProcessConfig) { c.Args = []string{"a\x00b"} }), connect.CodeInvalidArgument},
		{"= in a variable's name", config(func(c *pb.ProcessConfig) { c.Envs = map[string]string{"A=B": "c"} }), connect.CodeInvalidArgument},
		{"no process", &pb.StartRequest{}, connect.CodeInvalidArgument},
	}
	for _, c := range cases {
		if r := launch(t, s.processes(), c.request, 0).rest(); r.pid != 0 || connect.CodeOf(r.err) != c.code {
			t.Errorf("%s: pid %d, %v, want %v", c.name, r.pid, r.err, c.code)
		}
	}
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

func TestInputs(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		client := s.processes(codec)
		request := bash("cat")
		request.Stdin = proto.Bool(true)
		stream := launch(t, client, request, 0)
		pid := stream.pid(t)
		input := client.StreamInput(t.Context())
		send := func(message *pb.StreamInputRequest) {
			if err := input.Send(message); err != nil {
				t.Fatal(err)
			}
		}
		send(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Start{Start: &pb.StreamInputRequest_StartEvent{Process: byPid(pid)}}})
		for i := range 100 {
			send(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Data{
				Data: &pb.StreamInputRequest_DataEvent{Input: stdin(pid, strconv.Itoa(i%10)).Input},
			}})
			send(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Keepalive{Keepalive: &pb.StreamInputRequest_KeepAlive{}}})
		}
		if _, err := input.CloseAndReceive(); err != nil {
			t.Fatal(err)
		}
		closing := connect.NewRequest(&pb.CloseStdinRequest{Process: byPid(pid)})
		if _, err := client.CloseStdin(t.Context(), closing); err != nil {
			t.Fatal(err)
		}
		if r := stream.rest(); r.stdout.String() != strings.Repeat("0123456789", 10) {
			t.Errorf("stdout %q", r.stdout.String())
		}
	})
}

func TestInputsRefuse(t *testing.T) {
	s := start(t)
	client := s.processes()
	stream := launch(t, client, bash("sleep 1000"), 0)
	pid := stream.pid(t)
	_, err := client.SendInput(t.Context(), connect.NewRequest(stdin(pid, "x")))
	wantCode(t, "stdin of a process without", err, connect.CodeFailedPrecondition)
	_, err = client.SendInput(t.Context(), connect.NewRequest(&pb.SendInputRequest{
		Process: byPid(pid), Input: &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte("x")}},
	}))
	wantCode(t, "terminal input without a terminal", err, connect.CodeFailedPrecondition)
	_, err = client.SendInput(t.Context(), connect.NewRequest(&pb.SendInputRequest{Process: byPid(pid)}))
	wantCode(t, "no input", err, connect.CodeInvalidArgument)
	_, err = client.SendInput(t.Context(), connect.NewRequest(stdin(1<<30, "x")))
	wantCode(t, "an unknown process", err, connect.CodeNotFound)
	_, err = client.Update(t.Context(), connect.NewRequest(&pb.UpdateRequest{Process: byPid(pid), Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 1, Rows: 1}}}))
	wantCode(t, "the size of no terminal", err, connect.CodeFailedPrecondition)
	_, err = client.SendInput(t.Context(), connect.NewRequest(stdin(pid, strings.Repeat("x", maxMessage+1))))
	wantCode(t, "a huge message", err, connect.CodeResourceExhausted)
}

func TestAnInputThatIsNotReadHoldsNobodyElse(t *testing.T) {
	s := start(t)
	client := s.processes()
	request := bash("sleep 1000")
	request.Stdin = proto.Bool(true)
	pid := launch(t, client, request, 0).pid(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := client.SendInput(ctx, connect.NewRequest(stdin(pid, strings.Repeat("x", 1<<20))))
	wantCode(t, "a write that is not read", err, connect.CodeDeadlineExceeded)
	if r := launch(t, client, bash("echo fine"), 0).rest(); r.stdout.String() != "fine\n" {
		t.Errorf("another process: %q, %v", r.stdout.String(), r.err)
	}
}

func TestTerminal(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		client := s.processes(codec)
		request := bash("stty -echo; stty size; echo $TERM; read line; stty size; echo got $line; exit 6")
		request.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 100, Rows: 30}}
		stream := launch(t, client, request, 0)
		pid := stream.pid(t)
		seen := ""
		for !strings.Contains(seen, "xterm-256color") {
			event, ok := stream.next()
			if !ok {
				t.Fatal(stream.err())
			}
			seen += string(event.GetData().GetPty())
		}
		resize := &pb.UpdateRequest{Process: byPid(pid), Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 120, Rows: 40}}}
		if _, err := client.Update(t.Context(), connect.NewRequest(resize)); err != nil {
			t.Fatal(err)
		}
		_, err := client.SendInput(t.Context(), connect.NewRequest(stdin(pid, "x")))
		wantCode(t, "stdin of a terminal", err, connect.CodeFailedPrecondition)
		_, err = client.CloseStdin(t.Context(), connect.NewRequest(&pb.CloseStdinRequest{Process: byPid(pid)}))
		wantCode(t, "closing a terminal", err, connect.CodeFailedPrecondition)
		if _, err := client.SendInput(t.Context(), connect.NewRequest(&pb.SendInputRequest{
			Process: byPid(pid), Input: &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte("hello\r")}},
		})); err != nil {
			t.Fatal(err)
		}
		r := stream.rest()
		seen += r.pty.String()
		if !strings.Contains(seen, "30 100") || !strings.Contains(seen, "40 120") || !strings.Contains(seen, "got hello") ||
			r.end.GetExitCode() != 6 {
			t.Errorf("terminal: %q, %v", seen, r.end)
		}
	})
}

func TestKeepAlive(t *testing.T) {
	s := start(t)
	if r := launch(t, s.processes(), bash("sleep 1.5"), 0).rest(); r.keepalives != 1 {
		t.Errorf("%d keepalives in 1.5 s at one per second", r.keepalives)
	}
}

func TestAChildThatKeepsTheOutputOpenDoesNotHoldTheEnd(t *testing.T) {
	s := start(t)
	began := time.Now()
	r := launch(t, s.processes(), bash("sleep 1000 & echo before; exit 2"), 0).rest()
	if r.stdout.String() != "before\n" || r.end.GetExitCode() != 2 || time.Since(began) > 20*time.Second {
		t.Errorf("%q, %v after %v", r.stdout.String(), r.end, time.Since(began))
	}
}

func TestASlowReaderGetsEverythingAlsoAfterTheExit(t *testing.T) {
	s := start(t)
	stream := launch(t, s.processes(), bash("head -c 3000000 /dev/zero; sleep 1000 & exit 2"), 0)
	stream.pid(t)
	time.Sleep(300 * time.Millisecond) // longer than the patience with late output
	if r := stream.rest(); r.stdout.Len() != 3_000_000 || r.end.GetExitCode() != 2 {
		t.Errorf("%d bytes, %v, %v", r.stdout.Len(), r.end, r.err)
	}
}

func TestAFloodCostsNeitherMemoryNorOthersProgress(t *testing.T) {
	s := start(t)
	client := s.processes()
	flood := launch(t, client, bash("exec yes"), 0)
	pid := flood.pid(t) // and nothing more is read
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 20 {
		if r := launch(t, client, bash("echo fine"), 0).rest(); r.stdout.String() != "fine\n" {
			t.Errorf("beside the flood: %q, %v", r.stdout.String(), r.err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	const allowed = 32 << 20 // client and agent share this process, and the log ring fills up
	if after.HeapAlloc > before.HeapAlloc+allowed {
		t.Errorf("the heap has grown from %d to %d bytes", before.HeapAlloc, after.HeapAlloc)
	}
	cpu := cpuTicks(t, int(pid))
	time.Sleep(100 * time.Millisecond)
	if spent := cpuTicks(t, int(pid)) - cpu; spent > 2 {
		t.Errorf("the flood runs on without being read: %d ticks", spent)
	}
	flood.cancel() // nobody is left: the process goes on, unheard
	cpu = cpuTicks(t, int(pid))
	eventually(t, "the process goes on", func() bool { return cpuTicks(t, int(pid)) > cpu })
}

func cpuTicks(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return user + system
}
