// Package identity tells for a request as whom it acts and which file its path means.
package identity

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"aenv.dev/agent/internal/settings"
	"aenv.dev/agent/internal/users"
)

// PathError says why a path cannot be understood.
type PathError struct{ Reason string }

func (e PathError) Error() string { return e.Reason }

// Resolver knows the sandbox's users and defaults.
type Resolver struct {
	Users    users.Directory
	Settings *settings.Store
}

// User finds the named user; "" means the sandbox's default user.
func (r *Resolver) User(name string) (users.User, error) {
	if name != "" {
		return r.Users.Lookup(name)
	}
	name = r.Settings.Get().DefaultUser
	user, err := r.Users.Lookup(name)
	if errors.As(err, &users.UnknownError{}) {
		return user, fmt.Errorf("%w, the default user of this sandbox, has no account in it: "+
			"name a user that exists, for example 'root'", err)
	}
	return user, err
}

// Requester is the user named by Basic authentication, or the default user.
func (r *Resolver) Requester(header http.Header) (users.User, error) {
	request := http.Request{Header: header}
	name, _, _ := request.BasicAuth()
	return r.User(name)
}

// Workdir is where relative paths start: the sandbox's default working directory or the user's home.
func (r *Resolver) Workdir(user users.User) string {
	if dir := r.Settings.Get().DefaultWorkdir; dir != "" {
		return dir
	}
	return user.Home
}

// Path makes path absolute: "~" is the user's home, relative paths start at Workdir.
func (r *Resolver) Path(user users.User, path string) (string, error) {
	switch {
	case strings.ContainsRune(path, 0):
		return "", PathError{Reason: "invalid path: it contains a NUL byte"}
	case path == "~":
		return user.Home, nil
	case strings.HasPrefix(path, "~/"):
		return filepath.Join(user.Home, path[2:]), nil
	case strings.HasPrefix(path, "~"):
		return "", PathError{Reason: fmt.Sprintf("invalid path '%s': only ~ and ~/ are expanded", path)}
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	}
	return filepath.Join(r.Workdir(user), path), nil
}
