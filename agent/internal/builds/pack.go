package builds

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"aenv.dev/agent/internal/storage"
)

// pack sends what path names (a file, a folder, a pattern) as a gzipped tar, relative to root, for the unpack of another
// sandbox. An error after the first byte cuts the connection, so that nobody takes a part for the whole.
func (b *Builds) pack(w http.ResponseWriter, r *http.Request) {
	found, err := filepath.Glob(filepath.Join("/", r.URL.Query().Get("path")))
	if err == nil && len(found) == 0 {
		err = refuse("'%s' is not there", r.URL.Query().Get("path"))
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/gzip")
	zip, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	archive := tar.NewWriter(zip)
	links := map[inode]string{}
	for _, path := range found {
		err = errors.Join(err, filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return add(archive, path, entry, links)
		}))
	}
	if err := errors.Join(err, archive.Close(), zip.Close()); err != nil {
		panic(http.ErrAbortHandler)
	}
}

type inode struct{ device, number uint64 }

func add(archive *tar.Writer, path string, entry fs.DirEntry, links map[inode]string) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	target := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	case !info.Mode().IsRegular() && !info.IsDir():
		return nil // sockets, pipes and devices are of the running guest
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name = strings.TrimPrefix(path, "/")
	header.Uname, header.Gname = "", ""
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() && stat.Nlink > 1 {
		id := inode{uint64(stat.Dev), stat.Ino}
		if first, seen := links[id]; seen {
			header.Typeflag, header.Linkname, header.Size = tar.TypeLink, first, 0
			return archive.WriteHeader(header)
		}
		links[id] = header.Name
	}
	if err := archive.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.CopyN(archive, file, header.Size) // a file that shrinks meanwhile is an error
	return err
}

const aside = ".aenv-aside"

// cover hides what is at path behind an empty folder of the user, until uncover.
func (b *Builds) cover(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	user, err := b.Identity.User(query.Get("user"))
	if err == nil {
		err = b.hide(filepath.Join("/", query.Get("path")))
	}
	if err == nil {
		err = storage.MakeDirs(filepath.Join("/", query.Get("path")), user)
	}
	answer(w, err)
}

func (b *Builds) hide(path string) error {
	if path == "/" {
		return refuse("nothing can be mounted over '/'")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Rename(path, path+aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// uncover removes the folder, and brings back what it has hidden.
func (b *Builds) uncover(w http.ResponseWriter, r *http.Request) {
	path := filepath.Join("/", r.URL.Query().Get("path"))
	err := os.RemoveAll(path)
	if err == nil {
		if err = os.Rename(path+aside, path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	answer(w, err)
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
