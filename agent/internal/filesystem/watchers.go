package filesystem

import (
	"context"
	"crypto/rand"
	"sync"

	"connectrpc.com/connect"

	pb "aenv.dev/agent/internal/gen/filesystem"
)

const (
	// maxWatchers is what Linux grants a user in inotify instances by default.
	maxWatchers = 128
	// maxEvents is how many events wait for a poll; then the oldest are dropped.
	maxEvents = 16384
)

// Watchers holds the watchers that are polled.
type Watchers struct {
	mu   sync.Mutex
	byID map[string]*watcher
}

// NewWatchers returns an empty set.
func NewWatchers() *Watchers { return &Watchers{byID: map[string]*watcher{}} }

// watcher gathers events in the background, so that new directories are watched at once.
type watcher struct {
	*watch
	stop   context.CancelFunc
	mu     sync.Mutex
	events []*pb.FilesystemEvent
}

func (w *Watchers) add(watch *watch) (string, error) {
	ctx, stop := context.WithCancel(context.Background())
	created := &watcher{watch: watch, stop: stop}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.byID) >= maxWatchers {
		stop()
		return "", failure(connect.CodeResourceExhausted,
			"there are %d watchers already: remove one first", maxWatchers)
	}
	id := rand.Text()
	w.byID[id] = created
	go created.gather(ctx)
	return id, nil
}

func (w *Watchers) get(id string) (*watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if found := w.byID[id]; found != nil {
		return found, nil
	}
	return nil, failure(connect.CodeNotFound, "watcher with id %s not found", id)
}

func (w *Watchers) remove(id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.byID[id]
	if found == nil {
		return failure(connect.CodeNotFound, "watcher with id %s not found", id)
	}
	delete(w.byID, id)
	found.stop()
	return nil
}

func (w *watcher) gather(ctx context.Context) {
	defer w.close()
	for w.notifier.wait(ctx) == nil {
		if w.refresh() != nil {
			return
		}
	}
}

// refresh moves what has happened into the queue. Collecting and queueing are one step, or events would change places.
func (w *watcher) refresh() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	events, err := w.collect()
	w.events = append(w.events, events...)
	if surplus := len(w.events) - maxEvents; surplus > 0 {
		w.events = append([]*pb.FilesystemEvent(nil), w.events[surplus:]...)
	}
	return err
}

// poll returns everything that happened before it was called.
func (w *watcher) poll() ([]*pb.FilesystemEvent, error) {
	err := w.refresh()
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = nil
	return events, err
}
