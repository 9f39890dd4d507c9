package filesystem

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	pb "aenv.dev/agent/internal/gen/filesystem"
)

const (
	maxPending = 16384
	// settle is how long kqueue may take to tell about what has just happened.
	settle = 20 * time.Millisecond
)

type kqueue struct {
	watcher *fsnotify.Watcher
	arrived chan struct{}
	mu      sync.Mutex
	pending []change
}

func newNotifier() (notifier, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	k := &kqueue{watcher: watcher, arrived: make(chan struct{}, 1)}
	go k.collect()
	return k, nil
}

func (k *kqueue) add(dir string) error { return k.watcher.Add(dir) }

func (k *kqueue) forget(dir string) {
	for _, watched := range k.watcher.WatchList() {
		if watched == dir || strings.HasPrefix(watched, dir+"/") {
			_ = k.watcher.Remove(watched)
		}
	}
}

func (k *kqueue) take() ([]change, error) {
	time.Sleep(settle)
	k.mu.Lock()
	defer k.mu.Unlock()
	changes := k.pending
	k.pending = nil
	return changes, nil
}

func (k *kqueue) wait(ctx context.Context) error {
	select {
	case <-k.arrived:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *kqueue) close() { _ = k.watcher.Close() }

func (k *kqueue) collect() {
	for event := range k.watcher.Events {
		c := change{dir: filepath.Dir(event.Name), name: filepath.Base(event.Name), kind: eventType(event.Op)}
		if info, err := os.Lstat(event.Name); err == nil {
			c.isDir = info.IsDir()
		}
		k.mu.Lock()
		if len(k.pending) < maxPending {
			k.pending = append(k.pending, c)
		}
		k.mu.Unlock()
		select {
		case k.arrived <- struct{}{}:
		default:
		}
	}
}

func eventType(op fsnotify.Op) pb.EventType {
	switch {
	case op.Has(fsnotify.Create):
		return pb.EventType_EVENT_TYPE_CREATE
	case op.Has(fsnotify.Write):
		return pb.EventType_EVENT_TYPE_WRITE
	case op.Has(fsnotify.Remove):
		return pb.EventType_EVENT_TYPE_REMOVE
	case op.Has(fsnotify.Rename):
		return pb.EventType_EVENT_TYPE_RENAME
	}
	return pb.EventType_EVENT_TYPE_CHMOD
}
