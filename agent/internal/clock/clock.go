// Package clock counts the time the sandbox runs. A frozen or checkpointed sandbox's clocks jump by the time away; what
// waits here goes on where it was.
package clock

import (
	"container/heap"
	"sync"
	"time"
)

// slice is the most that counts between two looks at the time, and so what a pause costs at most.
const slice = time.Second

// Clock runs functions after some running time. While something waits it looks at the time once per slice.
type Clock struct {
	now   func() time.Duration
	wake  func(time.Duration, func())
	mu    sync.Mutex
	ran   time.Duration
	seen  time.Duration
	next  time.Duration // running time of the wake-up that is set; 0: none
	queue queue
}

// New returns a clock on the system's monotonic time.
func New() *Clock {
	start := time.Now()
	return newClock(
		func() time.Duration { return time.Since(start) },
		func(d time.Duration, f func()) { time.AfterFunc(d, f) },
	)
}

func newClock(now func() time.Duration, wake func(time.Duration, func())) *Clock {
	return &Clock{now: now, wake: wake}
}

// Timer is a pending call.
type Timer struct {
	clock *Clock
	at    time.Duration
	call  func()
	index int // in the queue; -1: not pending
}

// AfterFunc calls f in a goroutine of its own after d of running time.
func (c *Clock) AfterFunc(d time.Duration, f func()) *Timer {
	t := &Timer{clock: c, call: f, index: -1}
	t.Reset(d)
	return t
}

// Stop makes the call not happen, unless it has begun.
func (t *Timer) Stop() {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	if t.index >= 0 {
		heap.Remove(&t.clock.queue, t.index)
	}
}

// Reset makes the call happen d from now instead.
func (t *Timer) Reset(d time.Duration) {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look()
	t.at = c.ran + d
	if t.index >= 0 {
		heap.Fix(&c.queue, t.index)
	} else {
		heap.Push(&c.queue, t)
	}
	c.arm()
}

// look moves the running time on, by one slice at most: what is more was a pause, or nobody waited.
func (c *Clock) look() {
	now := c.now()
	c.ran += min(max(now-c.seen, 0), slice)
	c.seen = now
}

// arm sets a wake-up for the earliest timer or the end of the slice, unless an earlier one is set.
func (c *Clock) arm() {
	if len(c.queue) == 0 {
		return
	}
	in := min(max(c.queue[0].at-c.ran, 0), slice)
	if c.next != 0 && c.next <= c.ran+in {
		return
	}
	at := c.ran + in
	c.next = max(at, 1)
	c.wake(in, func() { c.tick(at) })
}

// tick runs what is due. Of several wake-ups only the one that was set last goes on.
func (c *Clock) tick(at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look()
	for len(c.queue) > 0 && c.queue[0].at <= c.ran {
		go heap.Pop(&c.queue).(*Timer).call()
	}
	if c.next == max(at, 1) {
		c.next = 0
		c.arm()
	}
}

// queue is a heap of pending timers.
type queue []*Timer

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(item any) {
	t := item.(*Timer)
	t.index = len(*q)
	*q = append(*q, t)
}

func (q *queue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	t.index = -1
	return t
}
