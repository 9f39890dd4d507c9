package reaper

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func running(t *testing.T) *Reaper {
	t.Helper()
	r := New()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return r
}

func shell(t *testing.T, r *Reaper, script string, exited func(syscall.WaitStatus)) int {
	t.Helper()
	pid, err := r.Start("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	}, exited)
	if err != nil {
		t.Error(err)
		exited(0)
	}
	return pid
}

func TestEveryStatusReachesItsOwner(t *testing.T) {
	r := running(t)
	const children = 100
	var all sync.WaitGroup
	for want := range children {
		all.Add(1)
		go shell(t, r, "exit "+strconv.Itoa(want), func(status syscall.WaitStatus) {
			defer all.Done()
			if status.ExitStatus() != want {
				t.Errorf("exit status %d, want %d", status.ExitStatus(), want)
			}
		})
	}
	all.Wait()
}

func TestOrphansAreBuriedAndStealNothing(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	r := running(t)
	status := make(chan syscall.WaitStatus, 1)
	shell(t, r, "(sleep 0.01 &) ; (true &) ; exit 5", func(s syscall.WaitStatus) { status <- s })
	if s := <-status; s.ExitStatus() != 5 {
		t.Errorf("exit status %d, want 5", s.ExitStatus())
	}
	eventually(t, "no child is left", func() bool { return len(children(t)) == 0 })
}

func TestAProgramThatCannotBeExecutedLeavesNothing(t *testing.T) {
	r := running(t)
	_, err := r.Start("/nonexistent", []string{"x"}, &syscall.ProcAttr{}, func(syscall.WaitStatus) { t.Error("exited") })
	if !errors.Is(err, syscall.ENOENT) {
		t.Errorf("error %v, want ENOENT", err)
	}
	eventually(t, "no child is left", func() bool { return len(children(t)) == 0 })
}

func TestSignalsReachTheLivingOnly(t *testing.T) {
	r := running(t)
	status := make(chan syscall.WaitStatus, 1)
	pid := shell(t, r, "sleep 100", func(s syscall.WaitStatus) { status <- s })
	if err := r.Signal(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if s := <-status; s.Signal() != syscall.SIGTERM {
		t.Errorf("status %v", s)
	}
	if err := r.Signal(pid, syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to a dead child: %v, want ErrProcessDone", err)
	}
}

// children lists the test's own children, zombies included.
func children(t *testing.T) []string {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, task := range tasks {
		content, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		all = append(all, strings.Fields(string(content))...)
	}
	return all
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
