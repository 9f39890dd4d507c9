package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"aenv.dev/agent/internal/storage"
	"aenv.dev/agent/internal/users"
)

// write stores content at path, in place: watchers see CREATE, CHMOD and WRITE of this file and of no other.
//
// A new file whose upload fails is removed. An existing one keeps its inode, links and mode; once its upload has begun,
// its old content is gone, and a failure leaves it empty rather than cut off.
func (f *Files) write(
	user users.User, requested string, content io.Reader, metadata map[string]string,
) (written, error) {
	path, err := f.Identity.Path(user, requested)
	if err != nil {
		return written{}, err
	}
	if err := storage.MakeDirs(filepath.Dir(path), user); err != nil {
		return written{}, err
	}
	file, created, err := openTarget(path)
	if err != nil {
		return written{}, err
	}
	err = errors.Join(fill(file, created, user, content, metadata), file.Close())
	if err == nil {
		return describe(path, metadata), nil
	}
	if created {
		_ = os.Remove(path)
	} else {
		_ = os.Truncate(path, 0)
	}
	return written{}, err
}

func fill(file *os.File, created bool, user users.User, content io.Reader, metadata map[string]string) error {
	if err := file.Chown(int(user.UID), int(user.GID)); err != nil && created {
		return err
	}
	if !created || len(metadata) > 0 {
		if err := storage.ReplaceMetadata(file, metadata); err != nil {
			return err
		}
	}
	_, err := io.Copy(file, content)
	if err != nil && !errors.As(err, new(*fs.PathError)) {
		return badRequest{fmt.Errorf("the upload broke off: %w", err)}
	}
	return err
}

// openTarget opens a regular file for writing, empty, and tells whether it is new.
func openTarget(path string) (*os.File, bool, error) {
	const flags = os.O_WRONLY | syscall.O_NONBLOCK
	file, err := os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o644)
	if !errors.Is(err, fs.ErrExist) {
		return file, true, err
	}
	file, err = os.OpenFile(path, flags|os.O_CREATE, 0o644) // O_CREATE: through a link whose target is missing
	if err != nil {
		return nil, false, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = badRequest{fmt.Errorf("path '%s' is not a regular file", path)}
	}
	if err == nil {
		err = file.Truncate(0)
	}
	if err != nil {
		_ = file.Close()
		return nil, false, err
	}
	return file, false, nil
}
