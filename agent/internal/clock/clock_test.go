package clock

import (
	"sync/atomic"
	"testing"
	"time"
)

// bench is a clock whose time and wake-ups the test makes.
type bench struct {
	*Clock
	time  time.Duration
	wakes []wake
}

type wake struct {
	at   time.Duration
	call func()
}

func newBench() *bench {
	b := &bench{time: time.Hour}
	b.Clock = newClock(
		func() time.Duration { return b.time },
		func(d time.Duration, f func()) { b.wakes = append(b.wakes, wake{b.time + d, f}) },
	)
	return b
}

// run lets d pass while the sandbox runs: wake-ups come when they are due.
func (b *bench) run(d time.Duration) {
	end := b.time + d
	for {
		first := -1
		for i, w := range b.wakes {
			if w.at <= end && (first < 0 || w.at < b.wakes[first].at) {
				first = i
			}
		}
		if first < 0 {
			b.time = end
			return
		}
		due := b.wakes[first]
		b.wakes = append(b.wakes[:first], b.wakes[first+1:]...)
		b.time = max(b.time, due.at)
		due.call()
	}
}

// pause lets the clocks jump.
func (b *bench) pause(d time.Duration) { b.time += d; b.run(0) }

type call struct{ count atomic.Int32 }

func (c *call) f() { c.count.Add(1) }

func (c *call) want(t *testing.T, what string, want int32) {
	t.Helper()
	// Calls run in goroutines of their own: give a wanted one time, and an unwanted one a chance.
	for deadline := time.Now().Add(time.Second); c.count.Load() < want && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if got := c.count.Load(); got != want {
		t.Errorf("%s: called %d times, want %d", what, got, want)
	}
}

func TestACallComesAfterItsTime(t *testing.T) {
	b, short, long := newBench(), &call{}, &call{}
	b.AfterFunc(30*time.Second, long.f)
	b.AfterFunc(100*time.Millisecond, short.f)
	b.run(99 * time.Millisecond)
	short.want(t, "before", 0)
	b.run(time.Millisecond)
	short.want(t, "then", 1)
	b.run(29899 * time.Millisecond)
	long.want(t, "before", 0)
	b.run(time.Millisecond)
	long.want(t, "then", 1)
	b.run(time.Minute)
	if len(b.wakes) != 0 {
		t.Errorf("with nothing to wait for, %d wake-ups are set", len(b.wakes))
	}
}

func TestAPauseCostsOneSecondAtMost(t *testing.T) {
	b, c := newBench(), &call{}
	b.AfterFunc(10*time.Second, c.f)
	b.run(5500 * time.Millisecond)
	b.pause(24 * time.Hour)
	b.run(3400 * time.Millisecond)
	c.want(t, "with a pause, early", 0)
	b.run(1100 * time.Millisecond)
	c.want(t, "with a pause, then", 1)
}

func TestAnIdleClockHasNotSeenThePause(t *testing.T) {
	b, c := newBench(), &call{}
	b.pause(24 * time.Hour)
	b.AfterFunc(2*time.Second, c.f)
	b.run(1999 * time.Millisecond)
	c.want(t, "early", 0)
	b.run(time.Millisecond)
	c.want(t, "then", 1)
}

func TestStopAndReset(t *testing.T) {
	b, stopped, moved := newBench(), &call{}, &call{}
	first := b.AfterFunc(time.Second, stopped.f)
	second := b.AfterFunc(2*time.Second, moved.f)
	first.Stop()
	first.Stop()
	b.run(time.Second)
	second.Reset(3 * time.Second)
	b.run(2999 * time.Millisecond)
	moved.want(t, "moved, early", 0)
	b.run(time.Millisecond)
	moved.want(t, "moved, then", 1)
	second.Reset(time.Second)
	b.run(time.Second)
	moved.want(t, "set again after its call", 2)
	stopped.want(t, "stopped", 0)
}

func TestTheRealClock(t *testing.T) {
	c, done := New(), make(chan time.Time, 1)
	started := time.Now()
	c.AfterFunc(20*time.Millisecond, func() { done <- time.Now() })
	if took := (<-done).Sub(started); took < 20*time.Millisecond {
		t.Errorf("called after %v", took)
	}
}
