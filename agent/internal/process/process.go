// Package process starts, feeds, watches and kills the sandbox's processes and serves process.Process.
//
// One goroutine per output pipe reads chunks and hands them to the subscribers' bounded queues, waiting for the slowest:
// a slow reader stops its own process and nothing else. With nobody subscribed, output goes to the log ring only.
package process

import (
	"context"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"aenv.dev/agent/internal/clock"

	pb "aenv.dev/agent/internal/gen/process"
)

const (
	// queued chunks per subscriber; a chunk is 32 KiB at most.
	queueLength = 4
	// lateOutput is how long after its exit a process's output may stay open because a child of it holds it.
	lateOutput = 100 * time.Millisecond
)

// Process is one started process, running or ended.
type Process struct {
	Pid      int
	command  *Command
	input    *input
	terminal *os.File // nil without a terminal
	outputs  []*pump
	ended    chan struct{} // closed after the last output was queued

	mu          sync.Mutex
	subscribers []*subscriber
	end         *pb.ProcessEvent // set before ended is closed

	remaining atomic.Int32 // outputs that are open, plus one until the exit
	status    syscall.WaitStatus
	timer     *clock.Timer    // nil: no time limit
	timesUp   context.Context // ends when it is killed because its time was up
	expire    context.CancelFunc
	onEnd     func(*Process)
}

// subscriber is one stream that follows a process; it is gone when its context ends.
type subscriber struct {
	events chan *pb.ProcessEvent
	gone   <-chan struct{}
}

// subscribe adds a follower. After the end there is nothing more to queue; the follower sees ended.
func (p *Process) subscribe(ctx context.Context) *subscriber {
	s := &subscriber{events: make(chan *pb.ProcessEvent, queueLength), gone: ctx.Done()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.subscribers = append(p.subscribers[:len(p.subscribers):len(p.subscribers)], s)
	}
	return s
}

func (p *Process) unsubscribe(s *subscriber) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var rest []*subscriber
	for _, other := range p.subscribers {
		if other != s {
			rest = append(rest, other)
		}
	}
	p.subscribers = rest
}

// followers is the current list; it is never changed in place.
func (p *Process) followers() []*subscriber {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.subscribers
}

// publish queues output for every follower and waits where a queue is full.
func (p *Process) publish(kind outputKind, chunk []byte) {
	followers := p.followers()
	if len(followers) == 0 {
		return
	}
	event := dataEvent(kind, append([]byte(nil), chunk...))
	for _, s := range followers {
		select {
		case s.events <- event:
		case <-s.gone:
		}
	}
}

// exited is called by the reaper. It must not block.
func (p *Process) exited(status syscall.WaitStatus) {
	p.status = status
	if p.settle() {
		return
	}
	time.AfterFunc(lateOutput, func() {
		for _, output := range p.outputs {
			output.expire()
		}
	})
}

// settle counts the exit and the end of each output; the last one ends the process.
func (p *Process) settle() bool {
	if p.remaining.Add(-1) > 0 {
		return false
	}
	p.mu.Lock()
	p.end = endEvent(p.status)
	p.subscribers = nil
	p.mu.Unlock()
	close(p.ended)
	p.input.shutdown()
	p.onEnd(p)
	return true
}

func (p *Process) expired() bool { return p.timesUp.Err() != nil }

// info describes the process for List.
func (p *Process) info() *pb.ProcessInfo {
	return &pb.ProcessInfo{Config: p.command.Config, Pid: uint32(p.Pid), Tag: p.command.Tag}
}

// epitaph is what stays of an ended process: the answer to a late Connect, without its command line and buffers.
func (p *Process) epitaph() *Process {
	return &Process{Pid: p.Pid, command: &Command{Tag: p.command.Tag}, end: p.end, ended: p.ended}
}

// disconnect closes our ends of a process that was not started.
func (p *Process) disconnect() {
	for _, u := range p.outputs {
		_ = u.file.Close()
	}
	if p.input != nil {
		p.input.shutdown()
	}
}

func logFields(pid int, command string) map[string]string {
	const longest = 256
	return map[string]string{"pid": strconv.Itoa(pid), "cmd": command[:min(len(command), longest)]}
}
