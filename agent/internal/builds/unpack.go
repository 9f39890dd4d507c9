package builds

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"aenv.dev/agent/internal/storage"
	"aenv.dev/agent/internal/users"
)

const (
	anyMode  = ^uint32(0)
	modeBits = 0o7777
)

// copying is one COPY: what of an archive goes where. As in a Dockerfile, a folder that is named gives its content, a
// file goes into the target if that ends with a slash or is a folder, else it becomes the target.
type copying struct {
	source  []string // the segments of what was named; nil: the whole context
	target  string
	into    bool // the target is a folder, whatever is copied
	owner   users.User
	keep    bool   // entries keep the owner that the archive names
	mode    uint32 // anyMode: as archived
	count   int
	folders []folderTime
}

type folderTime struct {
	path     string
	modified time.Time
}

func newCopying(source, requested, target string, owner users.User, mode uint32) *copying {
	c := &copying{target: target, owner: owner, mode: mode}
	if cleaned := path.Clean("/" + source)[1:]; cleaned != "" {
		c.source = strings.Split(cleaned, "/")
	}
	info, err := os.Stat(target)
	c.into = strings.HasSuffix(requested, "/") || strings.HasSuffix(requested, "/.") || requested == "." ||
		err == nil && info.IsDir() || strings.ContainsAny(source, "*?[")
	return c
}

func parseMode(text string) (uint32, error) {
	if text == "" {
		return anyMode, nil
	}
	mode, err := strconv.ParseUint(text, 8, 32)
	if err != nil || mode > modeBits {
		return 0, refuse("mode '%s' is not an octal number up to 7777", text)
	}
	return uint32(mode), nil
}

func (c *copying) archive(body io.Reader) error {
	plain, err := unzipped(body)
	if err != nil {
		return err
	}
	entries := tar.NewReader(plain)
	for {
		entry, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			return c.finish(plain, body)
		case err != nil:
			return refuse("the archive cannot be read: %w", err)
		}
		if err := c.entry(entry, entries); err != nil {
			return err
		}
	}
}

// finish sets the times of folders, and reads what follows the archive's end.
func (c *copying) finish(readers ...io.Reader) error {
	for _, reader := range readers {
		if _, err := io.Copy(io.Discard, reader); err != nil {
			return refuse("the archive cannot be read: %w", err)
		}
	}
	for _, folder := range c.folders {
		_ = os.Chtimes(folder.path, time.Time{}, folder.modified)
	}
	if c.count == 0 {
		return refuse("the archive holds nothing of '%s'", strings.Join(c.source, "/"))
	}
	return nil
}

func unzipped(body io.Reader) (io.Reader, error) {
	buffered := bufio.NewReaderSize(body, 64<<10)
	if start, _ := buffered.Peek(2); len(start) < 2 || start[0] != 0x1f || start[1] != 0x8b {
		return buffered, nil
	}
	reader, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, refuse("the archive cannot be read: %w", err)
	}
	return reader, nil
}

// entry makes one entry, if it is of what was named.
func (c *copying) entry(entry *tar.Header, content io.Reader) error {
	name := path.Clean("/" + entry.Name)[1:]
	place, ok := c.place(name, entry.Typeflag == tar.TypeDir)
	if !ok {
		return nil
	}
	c.count++
	if entry.Typeflag == tar.TypeDir {
		return c.folder(place, entry)
	}
	if err := storage.MakeDirs(filepath.Dir(place), c.owner); err != nil {
		return err
	}
	if info, err := os.Lstat(place); err == nil && info.IsDir() {
		return refuse("'%s' is a folder, and a file is to be copied there", place)
	}
	if err := os.Remove(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch entry.Typeflag {
	case tar.TypeReg:
		return c.file(place, entry, content)
	case tar.TypeSymlink:
		if err := os.Symlink(entry.Linkname, place); err != nil {
			return err
		}
		return c.own(place, entry)
	case tar.TypeLink:
		first, ok := c.place(path.Clean("/" + entry.Linkname)[1:], false)
		if !ok {
			return refuse("'%s' is a hard link to '%s', which is not copied", entry.Name, entry.Linkname)
		}
		return os.Link(first, place)
	}
	return refuse("'%s' is neither a file, a folder nor a link", entry.Name)
}

// place is where an entry goes: below the target by what follows the named path, or at the target.
func (c *copying) place(name string, isFolder bool) (string, bool) {
	segments := []string{}
	if name != "" {
		segments = strings.Split(name, "/")
	}
	matched, ok := c.match(segments)
	if !ok {
		return "", false
	}
	rest := segments[matched:]
	switch {
	case len(rest) > 0 || isFolder || len(segments) == 0:
		return filepath.Join(append([]string{c.target}, rest...)...), true
	case c.into:
		return filepath.Join(c.target, segments[len(segments)-1]), true
	}
	return c.target, true
}

// match tells how many segments of a name what was named takes. After "**" names keep their folders.
func (c *copying) match(segments []string) (int, bool) {
	for i, pattern := range c.source {
		if pattern == "**" {
			return i, true
		}
		if i >= len(segments) {
			return 0, false
		}
		if ok, err := path.Match(pattern, segments[i]); pattern != segments[i] && (err != nil || !ok) {
			return 0, false
		}
	}
	return len(c.source), true
}

func (c *copying) folder(place string, entry *tar.Header) error {
	if err := storage.MakeDirs(place, c.owner); err != nil {
		return err
	}
	if place == "/" {
		return nil
	}
	if err := c.own(place, entry); err != nil {
		return err
	}
	mode := uint32(entry.Mode) & modeBits
	if c.mode != anyMode {
		mode = c.mode | (c.mode&0o444)>>2 // who may read a folder may enter it
	}
	c.folders = append(c.folders, folderTime{place, entry.ModTime})
	return syscall.Chmod(place, mode)
}

func (c *copying) own(place string, entry *tar.Header) error {
	if c.keep {
		return os.Lchown(place, entry.Uid, entry.Gid)
	}
	return os.Lchown(place, int(c.owner.UID), int(c.owner.GID))
}

func (c *copying) file(place string, entry *tar.Header, content io.Reader) (err error) {
	file, err := os.OpenFile(place, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err != nil && !storage.IsFull(err) {
		err = refuse("the archive cannot be read: %w", err)
	}
	err = errors.Join(err, c.own(place, entry), file.Close())
	if err != nil {
		_ = os.Remove(place)
		return err
	}
	mode := uint32(entry.Mode) & modeBits
	if c.mode != anyMode {
		mode = c.mode
	}
	if err := syscall.Chmod(place, mode); err != nil {
		return err
	}
	return os.Chtimes(place, time.Time{}, entry.ModTime)
}
