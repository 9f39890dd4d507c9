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

const blockSize = 128 << 10

// write stores content at path, in place: watchers see CREATE, CHMOD and WRITE of this file and of no other.
//
// A new file whose upload fails is removed. An existing one keeps its inode, links and mode; once its upload has begun,
// its old content is gone, and a failure leaves it empty rather than cut off.
func (f *Files) write(
	user users.User, requested string, content io.Reader, metadata map[string]string,
) (written, error) {
	path, err := f.identity.Path(user, requested)
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
	err = errors.Join(f.fill(file, created, user, content, metadata), file.Close())
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

func (f *Files) fill(
	file *os.File, created bool, user users.User, content io.Reader, metadata map[string]string,
) error {
	if err := file.Chown(int(user.UID), int(user.GID)); err != nil && created {
		return err
	}
	if !created || len(metadata) > 0 {
		if err := storage.ReplaceMetadata(file, metadata); err != nil {
			return err
		}
	}
	block := f.blocks.Get().(*[blockSize]byte)
	defer f.blocks.Put(block)
	return copyBlocks(file, content, block[:])
}

// copyBlocks writes whole blocks, so that a small file is written at once and a watcher sees one WRITE.
func copyBlocks(file *os.File, content io.Reader, block []byte) error {
	for {
		n, ended := readBlock(content, block)
		if n > 0 {
			if _, err := file.Write(block[:n]); err != nil {
				return err
			}
		}
		if errors.Is(ended, io.EOF) {
			return nil
		}
		if ended != nil {
			return badRequest{fmt.Errorf("the upload broke off: %w", ended)}
		}
	}
}

// readBlock fills the block as far as it can. Unlike io.ReadFull it keeps the source's own error, by which a body that
// was cut off differs from one that is complete.
func readBlock(content io.Reader, block []byte) (n int, err error) {
	for n < len(block) && err == nil {
		var read int
		read, err = content.Read(block[n:])
		n += read
	}
	return n, err
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
