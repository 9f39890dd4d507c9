// Package logs keeps the latest output of the sandbox's processes in a bounded ring for the host to fetch.
package logs

import (
	"context"
	"sync"
	"time"
)

const (
	// Capacity bounds the ring in bytes, MaxLine one line.
	Capacity = 4 << 20
	MaxLine  = 16 << 10

	entryOverhead = 128
	// maxPage bounds the entries of one page, in bytes as the ring counts them.
	maxPage = 1 << 20
)

// Stream says who wrote an entry.
type Stream string

const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
	System Stream = "system"
)

// Entry is one line. Timestamp is in Unix seconds.
type Entry struct {
	Seq       uint64            `json:"seq"`
	Timestamp float64           `json:"timestamp"`
	Stream    Stream            `json:"stream"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

// Page is a piece of the log. Next is what to ask for next, Dropped how many entries were lost before this page.
type Page struct {
	Entries []Entry `json:"entries"`
	Next    uint64  `json:"next"`
	Dropped uint64  `json:"dropped"`
}

// Ring is safe for many writers and readers. Entry number n (from 1) is at entries[n-first].
type Ring struct {
	mu      sync.Mutex
	entries []Entry
	first   uint64
	bytes   int
	changed chan struct{}
	now     func() time.Time
}

// NewRing returns an empty ring.
func NewRing(now func() time.Time) *Ring {
	return &Ring{first: 1, changed: make(chan struct{}), now: now}
}

// System writes an entry of the agent itself.
func (r *Ring) System(level, message string, fields map[string]string) {
	r.append(System, level, []string{message}, fields)
}

// Clear forgets all entries and counts from 1 again.
func (r *Ring) Clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries, r.first, r.bytes = nil, 1, 0
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Ring) append(stream Stream, level string, lines []string, fields map[string]string) {
	if len(lines) == 0 {
		return
	}
	now := float64(r.now().UnixMicro()) / 1e6
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range lines {
		r.entries = append(r.entries, Entry{
			Seq: r.first + uint64(len(r.entries)), Timestamp: now, Stream: stream, Level: level, Message: line, Fields: fields,
		})
		r.bytes += len(line) + entryOverhead
	}
	r.shrink()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Ring) shrink() {
	drop := 0
	for r.bytes > Capacity {
		r.bytes -= len(r.entries[drop].Message) + entryOverhead
		r.entries[drop] = Entry{}
		drop++
	}
	r.entries = r.entries[drop:]
	r.first += uint64(drop)
}

// Read returns up to limit entries after seq. With none there it waits for one until ctx ends, then returns an empty
// page. A seq from the future (the sandbox was set back to an older snapshot) is corrected by Next.
func (r *Ring) Read(ctx context.Context, after uint64, limit int) Page {
	for {
		page, changed := r.page(after, limit)
		if len(page.Entries) > 0 || page.Next != after {
			return page
		}
		select {
		case <-ctx.Done():
			return page
		case <-changed:
		}
	}
}

func (r *Ring) page(after uint64, limit int) (Page, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	page := Page{Entries: []Entry{}, Next: after}
	last := r.first + uint64(len(r.entries)) - 1
	if after > last {
		page.Next = last
		return page, r.changed
	}
	from := max(after+1, r.first)
	page.Dropped = from - after - 1
	size := 0
	for _, entry := range r.entries[from-r.first:] {
		size += len(entry.Message) + entryOverhead
		if len(page.Entries) == limit || size > maxPage {
			break
		}
		page.Entries = append(page.Entries, entry)
		page.Next = entry.Seq
	}
	return page, r.changed
}
