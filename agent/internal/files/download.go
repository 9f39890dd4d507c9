package files

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
)

func (f *Files) download(w http.ResponseWriter, r *http.Request) {
	user, err := f.user(r)
	if err != nil {
		fail(w, err)
		return
	}
	path, err := f.identity.Path(user, r.URL.Query().Get("path"))
	if err != nil {
		fail(w, err)
		return
	}
	file, info, err := openRegular(path)
	if err != nil {
		fail(w, err)
		return
	}
	defer file.Close()
	serve(w, r, file, info)
}

// openRegular opens a regular file for reading. O_NONBLOCK: a FIFO without a writer must not hold the request.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = badRequest{fmt.Errorf("path '%s' is a directory", path)}
	case !info.Mode().IsRegular():
		err = badRequest{fmt.Errorf("path '%s' is not a regular file", path)}
	default:
		return file, info, nil
	}
	_ = file.Close()
	return nil, nil, err
}

// serve sends a file. Whoever accepts exactly "gzip" has asked for it; HTTP libraries that accept more by habit have
// not. Files of size 0 are read to their end, because those of /proc do not tell their size.
func serve(w http.ResponseWriter, r *http.Request, file *os.File, info os.FileInfo) {
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Vary", "Accept-Encoding")
	header.Set("X-Content-Type-Options", "nosniff")
	switch {
	case r.Header.Get("Accept-Encoding") == "gzip":
		header.Set("Content-Encoding", "gzip")
		compressed, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if _, err := io.Copy(compressed, file); err != nil {
			panic(http.ErrAbortHandler) // a cut stream must not look complete
		}
		_ = compressed.Close()
	case info.Size() == 0:
		if _, err := io.Copy(w, file); err != nil {
			panic(http.ErrAbortHandler)
		}
	default:
		http.ServeContent(w, r, "", info.ModTime(), file)
	}
}
