package server

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pb "aenv.dev/agent/internal/gen/process"
)

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
