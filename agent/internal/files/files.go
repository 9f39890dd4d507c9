// Package files serves /files: downloads, uploads and composition.
package files

import (
	"errors"
	"io/fs"
	"net/http"
	"path/filepath"
	"sync"

	"aenv.dev/agent/internal/auth"
	"aenv.dev/agent/internal/clock"
	"aenv.dev/agent/internal/identity"
	"aenv.dev/agent/internal/storage"
	"aenv.dev/agent/internal/users"
	"aenv.dev/agent/internal/wire"
)

// Files serves the files of the sandbox.
type Files struct {
	identity *identity.Resolver
	guard    *auth.Guard
	clock    *clock.Clock
	blocks   sync.Pool // of *[blockSize]byte
}

// New returns the endpoints for a sandbox, with time limits that count by running.
func New(resolver *identity.Resolver, guard *auth.Guard, running *clock.Clock) *Files {
	return &Files{
		identity: resolver, guard: guard, clock: running, blocks: sync.Pool{New: func() any { return new([blockSize]byte) }},
	}
}

// Routes registers the endpoints behind the access token or a signature.
func (f *Files) Routes(mux *http.ServeMux) {
	mux.Handle("GET /files", f.guard.Signed(auth.Read, http.HandlerFunc(f.download)))
	mux.Handle("POST /files", f.guard.Signed(auth.Write, http.HandlerFunc(f.upload)))
	mux.Handle("POST /files/compose", f.guard.Token(http.HandlerFunc(f.compose)))
}

// written describes a file that was written, in E2B's words.
type written struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func describe(path string, metadata map[string]string) written {
	return written{Name: filepath.Base(path), Path: path, Type: "file", Metadata: metadata}
}

// user is who the request acts as: the username parameter, Basic authentication, or the default user.
func (f *Files) user(r *http.Request) (users.User, error) {
	if name := r.URL.Query().Get("username"); name != "" {
		return f.identity.User(name)
	}
	return f.identity.Requester(r.Header)
}

// badRequest is an error that is the caller's fault.
type badRequest struct{ error }

func (b badRequest) Unwrap() error { return b.error }

// fail answers with the status that err means.
func fail(w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &users.UnknownError{}):
		status = http.StatusUnauthorized
	case errors.As(err, &badRequest{}), errors.As(err, &identity.PathError{}),
		errors.Is(err, storage.ErrNoMetadata), errors.As(err, &tooLarge):
		status = http.StatusBadRequest
	case storage.IsFull(err):
		status, err = http.StatusInsufficientStorage, errors.New("not enough disk space available: "+err.Error())
	case errors.Is(err, fs.ErrNotExist):
		status = http.StatusNotFound
	case errors.Is(err, fs.ErrPermission):
		status = http.StatusForbidden
	case storage.IsBadPath(err):
		status = http.StatusBadRequest
	}
	wire.Fail(w, status, err.Error())
}
