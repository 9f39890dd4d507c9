package process

import (
	"strconv"
	"syscall"

	pb "aenv.dev/agent/internal/gen/process"
)

type outputKind int

const (
	stdoutOutput outputKind = iota
	stderrOutput
	terminalOutput
)

func startEvent(pid int) *pb.ProcessEvent {
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: uint32(pid)}}}
}

func keepAliveEvent() *pb.ProcessEvent {
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Keepalive{Keepalive: &pb.ProcessEvent_KeepAlive{}}}
}

func dataEvent(kind outputKind, chunk []byte) *pb.ProcessEvent {
	data := &pb.ProcessEvent_DataEvent{}
	switch kind {
	case stdoutOutput:
		data.Output = &pb.ProcessEvent_DataEvent_Stdout{Stdout: chunk}
	case stderrOutput:
		data.Output = &pb.ProcessEvent_DataEvent_Stderr{Stderr: chunk}
	case terminalOutput:
		data.Output = &pb.ProcessEvent_DataEvent_Pty{Pty: chunk}
	}
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: data}}
}

// endEvent words a status as Go's os/exec does, which is what E2B's clients know: a signal is exit code -1.
func endEvent(status syscall.WaitStatus) *pb.ProcessEvent {
	end := &pb.ProcessEvent_EndEvent{ExitCode: -1, Exited: status.Exited()}
	if status.Exited() {
		end.ExitCode = int32(status.ExitStatus())
		end.Status = "exit status " + strconv.Itoa(status.ExitStatus())
	} else {
		end.Status = "signal: " + status.Signal().String()
		if status.CoreDump() {
			end.Status += " (core dumped)"
		}
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_End{End: end}}
}
