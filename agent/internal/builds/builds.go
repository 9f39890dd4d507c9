// Package builds does in the guest what a template build needs beyond commands: it unpacks the files of a COPY, makes
// working directories, and gives an image its user. It works in images without a shell or any other program.
package builds

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"aenv.dev/agent/internal/clock"
	"aenv.dev/agent/internal/identity"
	"aenv.dev/agent/internal/storage"
	"aenv.dev/agent/internal/users"
	"aenv.dev/agent/internal/wire"
)

// asArchived as the owner: each entry's own.
const asArchived = "="

// idleArchive is how long an archive on its way may stand still before it is given up.
const idleArchive = 2 * time.Minute

// Builds answers the host.
type Builds struct {
	Identity *identity.Resolver
	Clock    *clock.Clock
	Etc      string // where account files are
	Homes    string // where homes are made
}

// Routes registers the endpoints; host guards them with the host's secret.
func (b *Builds) Routes(mux *http.ServeMux, host func(http.Handler) http.Handler) {
	mux.Handle("POST /aenv/build/unpack", host(http.HandlerFunc(b.unpack)))
	mux.Handle("POST /aenv/build/folder", host(http.HandlerFunc(b.folder)))
	mux.Handle("GET /aenv/build/pack", host(http.HandlerFunc(b.pack)))
	mux.Handle("POST /aenv/build/cover", host(http.HandlerFunc(b.cover)))
	mux.Handle("POST /aenv/build/uncover", host(http.HandlerFunc(b.uncover)))
	mux.Handle("POST /aenv/build/user", host(http.HandlerFunc(b.account)))
}

// unpack puts an archive (tar, gzipped or not) where a COPY wants it. Query: source, path, user (who relative paths are
// of), owner (of what is made), mode (octal; empty: as archived).
func (b *Builds) unpack(w http.ResponseWriter, r *http.Request) {
	body := b.patient(w, r)
	defer body.relax()
	count, err := b.receive(r, body)
	if err != nil {
		_, _ = io.Copy(io.Discard, body) // clients that send all before they read see the answer
		fail(w, err)
		return
	}
	wire.JSON(w, http.StatusOK, map[string]int{"entries": count})
}

func (b *Builds) receive(r *http.Request, body *patientBody) (int, error) {
	query := r.URL.Query()
	user, err := b.Identity.User(query.Get("user"))
	if err != nil {
		return 0, err
	}
	owner, keep := user, query.Get("owner") == asArchived
	if name := query.Get("owner"); name != "" && !keep {
		if owner, err = b.Identity.User(name); err != nil {
			return 0, err
		}
	}
	mode, err := parseMode(query.Get("mode"))
	if err != nil {
		return 0, err
	}
	path := query.Get("path")
	target, err := b.Identity.Path(user, path)
	if err != nil {
		return 0, err
	}
	copying := newCopying(query.Get("source"), path, target, owner, mode)
	copying.keep = keep
	if err := copying.archive(body); err != nil {
		return 0, err
	}
	return copying.count, nil
}

// folder makes a working directory and gives it to the user, with keep only if it was not there.
func (b *Builds) folder(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	user, err := b.Identity.User(query.Get("user"))
	if err == nil {
		err = b.makeFolder(user, query.Get("path"), query.Get("keep") != "")
	}
	answer(w, err)
}

func (b *Builds) makeFolder(user users.User, requested string, keep bool) error {
	path, err := b.Identity.Path(user, requested)
	if err != nil {
		return err
	}
	if err := storage.MakeDirs(path, user); err != nil {
		return err
	}
	if path == "/" || keep {
		return nil
	}
	return os.Chown(path, int(user.UID), int(user.GID))
}

// account makes the user with its home unless there is one; it may become root by sudo without a password.
func (b *Builds) account(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	if err := provision(b.Etc, b.Homes, name); err != nil {
		fail(w, err)
		return
	}
	user, err := b.Identity.User(name)
	if err != nil {
		fail(w, err)
		return
	}
	wire.JSON(w, http.StatusOK, map[string]any{"name": user.Name, "uid": user.UID, "gid": user.GID, "home": user.Home})
}

// badArchive is an error that is the caller's fault.
type badArchive struct{ error }

func (b badArchive) Unwrap() error { return b.error }

func refuse(format string, args ...any) error { return badArchive{fmt.Errorf(format, args...)} }

func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &users.UnknownError{}):
		status = http.StatusUnauthorized
	case errors.As(err, &badArchive{}), errors.As(err, &identity.PathError{}), storage.IsBadPath(err),
		errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		status = http.StatusBadRequest
	case storage.IsFull(err):
		status, err = http.StatusInsufficientStorage, errors.New("not enough disk space available: "+err.Error())
	}
	wire.Fail(w, status, err.Error())
}

// patientBody gives every read of an archive its own time limit, in running time.
type patientBody struct {
	request *http.Request
	control *http.ResponseController
	limit   *clock.Timer
}

func (b *Builds) patient(w http.ResponseWriter, r *http.Request) *patientBody {
	control := http.NewResponseController(w)
	give := func() { _ = control.SetReadDeadline(time.Unix(1, 0)) }
	return &patientBody{request: r, control: control, limit: b.Clock.AfterFunc(idleArchive, give)}
}

func (p *patientBody) Read(buffer []byte) (int, error) {
	p.limit.Reset(idleArchive)
	return p.request.Body.Read(buffer)
}

func (p *patientBody) relax() {
	p.limit.Stop()
	_ = p.control.SetReadDeadline(time.Time{})
}
