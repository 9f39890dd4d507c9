package filesystem

import (
	"context"

	pb "aenv.dev/agent/internal/gen/filesystem"
)

// change is one thing that happened to an entry of a watched directory.
type change struct {
	dir, name string
	kind      pb.EventType
	isDir     bool
	arrived   bool // a CREATE by moving: what is inside is not new
}

// notifier is the system's way of telling about changes in directories. It is not safe for concurrent use, except wait.
type notifier interface {
	// add watches the entries of a directory.
	add(dir string) error
	// forget stops watching dir and everything below it.
	forget(dir string)
	// take returns what has happened up to now, and never waits.
	take() ([]change, error)
	// wait returns when there may be something to take.
	wait(ctx context.Context) error
	close()
}
