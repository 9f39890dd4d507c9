package server

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestAChildThatKeepsTheOutputOpenDoesNotHoldTheEnd(t *testing.T) {
	s := start(t)
	began := time.Now()
	r := launch(t, s.processes(), bash("sleep 1000 & echo before; exit 2"), 0).rest()
	if r.stdout.String() != "before\n" || r.end.GetExitCode() != 2 || time.Since(began) > 20*time.Second {
		t.Errorf("%q, %v after %v", r.stdout.String(), r.end, time.Since(began))
	}
}

// The process can exit only when the rest of its output fits into the buffers on the way. Then nothing is read for longer
// than late output is waited for, and a child keeps the pipe open.
func TestASlowReaderGetsEverythingAlsoAfterTheExit(t *testing.T) {
	const size = 32_000_000 // more than all buffers on the way
	s := start(t)
	stream := launch(t, s.processes(), bash("sleep 1000 & exec head -c "+strconv.Itoa(size)+" /dev/zero"), 0)
	pid, got := int(stream.pid(t)), 0
	for alive(pid) {
		event, ok := stream.next()
		if !ok {
			t.Fatal(stream.err())
		}
		got += len(event.GetData().GetStdout())
		if got > size/2 {
			time.Sleep(time.Millisecond) // stay behind
		}
	}
	time.Sleep(300 * time.Millisecond)
	if r := stream.rest(); got+r.stdout.Len() != size || r.end == nil || r.end.GetExitCode() != 0 {
		t.Errorf("%d bytes, %v, %v", got+r.stdout.Len(), r.end, r.err)
	}
}

func TestAFloodCostsNeitherMemoryNorOthersProgress(t *testing.T) {
	s := start(t)
	client := s.processes()
	flood := launch(t, client, bash(`exec yes "$(printf %01000d 0)"`), 0) // long lines: the log costs little
	pid := flood.pid(t)                                                   // and nothing more is read
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
