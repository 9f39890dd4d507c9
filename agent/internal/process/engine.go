package process

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"aenv.dev/agent/internal/clock"
	"aenv.dev/agent/internal/logs"
	"aenv.dev/agent/internal/reaper"
	"connectrpc.com/connect"

	pb "aenv.dev/agent/internal/gen/process"
)

// retention is how long, in running time, the result of an ended process stays for a late Connect.
const retention = 30 * time.Second

// Engine holds the sandbox's processes.
type Engine struct {
	reaper  *reaper.Reaper
	log     *logs.Ring
	clock   *clock.Clock
	null    *os.File
	buffers sync.Pool

	mu      sync.Mutex
	running map[int]*Process
	ended   map[int]*Process
}

// NewEngine returns an engine whose children are collected by r and whose time limits count by running.
func NewEngine(r *reaper.Reaper, log *logs.Ring, running *clock.Clock) (*Engine, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("the sandbox needs %s: %w", os.DevNull, err)
	}
	return &Engine{
		reaper: r, log: log, clock: running, null: null,
		buffers: sync.Pool{New: func() any { return new([pipeChunk]byte) }},
		running: map[int]*Process{}, ended: map[int]*Process{},
	}, nil
}

// Start runs a prepared command; the returned subscription sees everything from the first byte on.
//
// A process ends when its exit is known and its outputs are read, and their readers start last: so its end always finds
// it registered.
func (e *Engine) Start(ctx context.Context, c *Command) (*Process, *subscriber, error) {
	p := &Process{command: c, ended: make(chan struct{}), onEnd: e.retire}
	p.timesUp, p.expire = context.WithCancel(context.Background())
	child, err := e.connect(p)
	defer child.close()
	if err != nil {
		p.disconnect()
		return nil, nil, connect.NewError(connect.CodeResourceExhausted, err)
	}
	p.remaining.Store(int32(len(p.outputs)) + 1)
	s := p.subscribe(ctx)
	argv := append([]string{c.name}, c.Config.GetArgs()...)
	p.Pid, err = e.reaper.Start(c.path, argv, c.attributes(child.descriptors()), p.exited)
	if err != nil {
		p.disconnect()
		return nil, nil, c.startError(err)
	}
	e.mu.Lock()
	e.running[p.Pid] = p
	delete(e.ended, p.Pid)
	e.mu.Unlock()
	e.follow(p)
	return p, s, nil
}

// follow starts the clock and the readers of a started process.
func (e *Engine) follow(p *Process) {
	if p.command.Timeout > 0 {
		p.timer = e.clock.AfterFunc(p.command.Timeout, func() { e.Expire(p) })
	}
	fields := logFields(p.Pid, p.command.Config.GetCmd())
	for _, u := range p.outputs {
		switch {
		case u.kind == stdoutOutput && !p.command.Quiet:
			u.lines = e.log.Lines(logs.Stdout, fields)
		case u.kind == stderrOutput:
			u.lines = e.log.Lines(logs.Stderr, fields)
		}
		go u.run(p.publish, p.settle)
	}
}

// retire moves an ended process to the results that are kept for a while.
func (e *Engine) retire(p *Process) {
	if p.timer != nil {
		p.timer.Stop()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running[p.Pid] != p {
		return // its pid has a new owner already
	}
	delete(e.running, p.Pid)
	kept := p.epitaph()
	e.ended[kept.Pid] = kept
	e.clock.AfterFunc(retention, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.ended[kept.Pid] == kept {
			delete(e.ended, kept.Pid)
		}
	})
}

// Expire kills a process whose time is up, with everything it has started.
func (e *Engine) Expire(p *Process) {
	p.expire()
	_ = e.Kill(p)
}

// Kill kills a process with its whole tree, or fails with os.ErrProcessDone.
func (e *Engine) Kill(p *Process) error {
	return e.reaper.Hold(p.Pid, func() { killTree(p.Pid, os.Getpid()) })
}

// Terminate asks the process group to end.
func (e *Engine) Terminate(p *Process) error { return e.reaper.Signal(p.Pid, syscall.SIGTERM) }

// Close kills everything below the agent.
func (e *Engine) Close() { killDescendants(os.Getpid(), 2*time.Second) }

// List returns the running processes by pid.
func (e *Engine) List() []*Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.SortedFunc(maps.Values(e.running), func(a, b *Process) int { return a.Pid - b.Pid })
}

// Running finds a running process.
func (e *Engine) Running(selector *pb.ProcessSelector) (*Process, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return find(selector, e.running)
}

// Known finds a running process, or one that ended a moment ago.
func (e *Engine) Known(selector *pb.ProcessSelector) (*Process, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p, err := find(selector, e.running); err == nil {
		return p, nil
	}
	return find(selector, e.ended)
}

func find(selector *pb.ProcessSelector, among map[int]*Process) (*Process, error) {
	switch by := selector.GetSelector().(type) {
	case *pb.ProcessSelector_Pid:
		if p := among[int(by.Pid)]; p != nil {
			return p, nil
		}
		return nil, notFound("process with pid %d not found", by.Pid)
	case *pb.ProcessSelector_Tag:
		for _, p := range among {
			if p.command.Tag != nil && *p.command.Tag == by.Tag {
				return p, nil
			}
		}
		return nil, notFound("process with tag '%s' not found", by.Tag)
	}
	return nil, invalid("the process selector needs a pid or a tag")
}

func notFound(format string, args ...any) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf(format, args...))
}
