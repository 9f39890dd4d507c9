package filesystem

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"aenv.dev/agent/internal/users"

	pb "aenv.dev/agent/internal/gen/filesystem"
)

// watch follows one directory, or a tree.
type watch struct {
	names        users.Directory
	path         string // as it was asked for
	root         string // with its links resolved
	recursive    bool
	includeEntry bool

	notifier notifier
	mu       sync.Mutex          // one reader of the notifier at a time
	found    map[string]struct{} // announced from a listing; the notifier may announce it again
}

func newWatch(w *watch) (*watch, error) {
	n, err := newNotifier()
	if err != nil {
		return nil, err
	}
	w.notifier, w.found = n, map[string]struct{}{}
	if err := n.add(w.root); err != nil {
		n.close()
		return nil, err
	}
	if w.recursive {
		if err := w.addBelow(w.root); err != nil {
			n.close()
			return nil, err
		}
	}
	return w, nil
}

// addBelow watches the directories below dir.
func (w *watch) addBelow(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		below := filepath.Join(dir, entry.Name())
		if err := w.notifier.add(below); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := w.addBelow(below); err != nil {
			return err
		}
	}
	return nil
}

// next waits for something to happen and returns it.
func (w *watch) next(ctx context.Context) ([]*pb.FilesystemEvent, error) {
	for {
		if err := w.notifier.wait(ctx); err != nil {
			return nil, err
		}
		if events, err := w.collect(); len(events) > 0 || err != nil {
			return events, err
		}
	}
}

// collect returns everything that has happened and was not returned yet.
func (w *watch) collect() ([]*pb.FilesystemEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var events []*pb.FilesystemEvent
	for {
		changes, err := w.notifier.take()
		if err != nil || len(changes) == 0 {
			clear(w.found) // what a listing overlapped with has been taken by now
			return events, err
		}
		for _, c := range changes {
			events = w.see(c, events)
		}
	}
}

// see turns a change into events and keeps the set of watched directories in step.
func (w *watch) see(c change, events []*pb.FilesystemEvent) []*pb.FilesystemEvent {
	path := filepath.Join(c.dir, c.name)
	created := c.kind == pb.EventType_EVENT_TYPE_CREATE
	if _, twice := w.found[path]; twice && created {
		return events
	}
	events = append(events, w.event(path, c.kind))
	if !w.recursive || !c.isDir {
		return events
	}
	switch {
	case created && c.arrived:
		_ = w.notifier.add(path)
		_ = w.addBelow(path)
	case created:
		events = w.enter(path, events)
	case c.kind == pb.EventType_EVENT_TYPE_RENAME, c.kind == pb.EventType_EVENT_TYPE_REMOVE:
		w.notifier.forget(path)
	}
	return events
}

// enter watches a new directory and announces what was put into it before it was watched.
func (w *watch) enter(dir string, events []*pb.FilesystemEvent) []*pb.FilesystemEvent {
	if w.notifier.add(dir) != nil {
		return events // it is gone again
	}
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if _, twice := w.found[path]; twice {
			continue
		}
		w.found[path] = struct{}{}
		events = append(events, w.event(path, pb.EventType_EVENT_TYPE_CREATE))
		if entry.IsDir() {
			events = w.enter(path, events)
		}
	}
	return events
}

// event names the path relative to the watched directory.
func (w *watch) event(path string, kind pb.EventType) *pb.FilesystemEvent {
	name, err := filepath.Rel(w.root, path)
	if err != nil {
		name = path
	}
	event := &pb.FilesystemEvent{Name: name, Type: kind}
	if w.includeEntry && kind != pb.EventType_EVENT_TYPE_REMOVE {
		if entry, err := describe(w.names, path); err == nil {
			entry.Path = filepath.Join(w.path, name)
			event.Entry = entry
		}
	}
	return event
}

func (w *watch) close() { w.notifier.close() }
