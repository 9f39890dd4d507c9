// Package storage holds what the file endpoints and the Filesystem service share: owned folders, stored metadata, and
// what an error of the file system means.
package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"aenv.dev/agent/internal/users"
)

// MakeDirs makes path and its missing parents; what it makes belongs to user.
func MakeDirs(path string, user users.User) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if parent := filepath.Dir(path); parent != path {
		if err := MakeDirs(parent, user); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Lchown(path, int(user.UID), int(user.GID))
}

// IsFull tells whether err means that the disk or the quota is used up.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// IsBadPath tells whether err is the fault of the path that was asked for.
func IsBadPath(err error) bool {
	for _, bad := range []error{
		syscall.ENOTDIR, syscall.EISDIR, syscall.EINVAL, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.ENXIO,
	} {
		if errors.Is(err, bad) {
			return true
		}
	}
	return false
}

// Reason is the cause inside a file error, without the path and the name of the system call.
func Reason(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

// ErrNoMetadata says that this file system cannot hold metadata.
var ErrNoMetadata = fmt.Errorf("metadata cannot be stored here: the file system has no user extended attributes")
