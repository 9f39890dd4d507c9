package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// moveAcross moves between file systems: it copies beside the destination, renames, and then removes the source. Until
// the copy is complete nothing is changed; if the source cannot be removed both stay and the error says so.
func moveAcross(ctx context.Context, source, destination string) error {
	staging, err := os.MkdirTemp(filepath.Dir(destination), ".move-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging)
	copied := filepath.Join(staging, "copy")
	if err := copyTree(ctx, source, copied); err != nil {
		return err
	}
	if err := os.Rename(copied, destination); err != nil {
		return err
	}
	return os.RemoveAll(source)
}

func copyTree(ctx context.Context, source, destination string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(source)
		if err != nil {
			return err
		}
		err = os.Symlink(target, destination)
		return errors.Join(err, own(destination, info))
	case info.IsDir():
		err = copyDirectory(ctx, source, destination)
	case info.Mode().IsRegular():
		err = copyFile(source, destination)
	default:
		return fmt.Errorf("'%s' is neither file, directory nor link, and cannot be moved to another file system", source)
	}
	return errors.Join(err, own(destination, info), os.Chmod(destination, modeBits(info.Mode())),
		os.Chtimes(destination, time.Time{}, info.ModTime()))
}

func copyDirectory(ctx context.Context, source, destination string) error {
	if err := os.Mkdir(destination, 0o700); err != nil {
		return err
	}
	names, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := copyTree(ctx, filepath.Join(source, name.Name()), filepath.Join(destination, name.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(source, destination string) error {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(destination, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	copyAttributes(source, to)
	return errors.Join(err, to.Close())
}

// copyAttributes takes the extended attributes along where the other file system can hold them.
func copyAttributes(source string, to *os.File) {
	names, value := make([]byte, 64<<10), make([]byte, 64<<10)
	n, err := unix.Listxattr(source, names)
	if err != nil {
		return
	}
	for _, name := range splitNames(names[:n]) {
		if n, err := unix.Getxattr(source, name, value); err == nil {
			_ = unix.Fsetxattr(int(to.Fd()), name, value[:n], 0)
		}
	}
}

func splitNames(names []byte) []string {
	var split []string
	for start, i := 0, 0; i < len(names); i++ {
		if names[i] == 0 {
			split, start = append(split, string(names[start:i])), i+1
		}
	}
	return split
}

func own(path string, info fs.FileInfo) error {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return os.Lchown(path, int(stat.Uid), int(stat.Gid))
	}
	return nil
}

func modeBits(mode fs.FileMode) fs.FileMode {
	return mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}
