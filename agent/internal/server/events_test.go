package server

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
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

// alive tells whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return syscall.Kill(pid, 0) == nil && runtime.GOOS != "linux"
	}
	return !bytes.Contains(stat, []byte(") Z "))
}
