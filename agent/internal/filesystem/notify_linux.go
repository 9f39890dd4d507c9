package filesystem

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	pb "aenv.dev/agent/internal/gen/filesystem"
)

const (
	interesting = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_MODIFY | unix.IN_ATTRIB |
		unix.IN_DELETE | unix.IN_ONLYDIR

	eventBuffer = 64 << 10
)

// inotify is used directly, not through a library with a goroutine of its own: a poll must see everything that happened
// before it, so it has to empty the kernel's queue itself.
type inotify struct {
	file *os.File
	dirs map[int32]string
	wds  map[string]int32
}

func newNotifier() (notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &inotify{
		file: os.NewFile(uintptr(fd), "inotify"), dirs: map[int32]string{}, wds: map[string]int32{},
	}, nil
}

func (n *inotify) add(dir string) error {
	return n.control(func(fd int) error {
		wd, err := unix.InotifyAddWatch(fd, dir, interesting)
		if err != nil {
			return &os.PathError{Op: "inotify_add_watch", Path: dir, Err: err}
		}
		n.dirs[int32(wd)], n.wds[dir] = dir, int32(wd)
		return nil
	})
}

func (n *inotify) forget(dir string) {
	for watched, wd := range n.wds {
		if watched == dir || strings.HasPrefix(watched, dir+"/") {
			delete(n.wds, watched)
			delete(n.dirs, wd)
			_ = n.control(func(fd int) error {
				_, err := unix.InotifyRmWatch(fd, uint32(wd))
				return err
			})
		}
	}
}

func (n *inotify) take() ([]change, error) {
	var changes []change
	buffer := make([]byte, eventBuffer)
	for {
		read := 0
		err := n.control(func(fd int) (err error) {
			read, err = unix.Read(fd, buffer)
			return err
		})
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return changes, nil
		case err != nil:
			return changes, err
		default:
			changes = n.parse(buffer[:read], changes)
		}
	}
}

func (n *inotify) wait(ctx context.Context) error {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = n.file.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-interrupted
			_ = n.file.SetReadDeadline(time.Time{})
		}
	}()
	raw, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Read(func(fd uintptr) bool {
		queued, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		return err != nil || queued > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (n *inotify) close() { _ = n.file.Close() }

func (n *inotify) control(act func(fd int) error) error {
	raw, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = act(int(fd)) })
	return errors.Join(err, failed)
}

// parse reads inotify_event records: wd, mask, cookie, length, name.
func (n *inotify) parse(records []byte, changes []change) []change {
	for len(records) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(records))
		mask := binary.NativeEndian.Uint32(records[4:])
		length := int(binary.NativeEndian.Uint32(records[12:]))
		name := records[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+length]
		records = records[unix.SizeofInotifyEvent+length:]
		name = bytes.TrimRight(name, "\x00")
		dir, known := n.dirs[wd]
		if mask&unix.IN_IGNORED != 0 && known {
			delete(n.dirs, wd)
			delete(n.wds, dir)
		}
		if kind := eventType(mask); known && len(name) > 0 && kind != pb.EventType_EVENT_TYPE_UNSPECIFIED {
			changes = append(changes, change{
				dir: dir, name: string(name), kind: kind, isDir: mask&unix.IN_ISDIR != 0, arrived: mask&unix.IN_MOVED_TO != 0,
			})
		}
	}
	return changes
}

func eventType(mask uint32) pb.EventType {
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		return pb.EventType_EVENT_TYPE_CREATE
	case mask&unix.IN_MODIFY != 0:
		return pb.EventType_EVENT_TYPE_WRITE
	case mask&unix.IN_DELETE != 0:
		return pb.EventType_EVENT_TYPE_REMOVE
	case mask&unix.IN_MOVED_FROM != 0:
		return pb.EventType_EVENT_TYPE_RENAME
	case mask&unix.IN_ATTRIB != 0:
		return pb.EventType_EVENT_TYPE_CHMOD
	}
	return pb.EventType_EVENT_TYPE_UNSPECIFIED
}
