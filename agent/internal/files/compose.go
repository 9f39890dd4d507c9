package files

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"aenv.dev/agent/internal/storage"
	"aenv.dev/agent/internal/users"
	"aenv.dev/agent/internal/wire"
)

type composeRequest struct {
	Destination string   `json:"destination"`
	SourcePaths []string `json:"source_paths"`
	Username    string   `json:"username"`
}

// compose joins files into one and removes the sources. The parts of a chunked upload are put together this way.
func (f *Files) compose(w http.ResponseWriter, r *http.Request) {
	var request composeRequest
	if err := wire.Read(w, r, &request); err != nil {
		wire.Fail(w, http.StatusBadRequest, err.Error())
		return
	}
	user, err := f.identity.User(request.Username)
	if err != nil {
		fail(w, err)
		return
	}
	file, err := f.join(user, request)
	if err != nil {
		fail(w, err)
		return
	}
	wire.JSON(w, http.StatusOK, file)
}

// join writes beside the destination and renames, so that nothing is lost when it fails.
func (f *Files) join(user users.User, request composeRequest) (written, error) {
	destination, sources, err := f.composePaths(user, request)
	if err != nil {
		return written{}, err
	}
	if err := storage.MakeDirs(filepath.Dir(destination), user); err != nil {
		return written{}, err
	}
	joined, err := os.CreateTemp(filepath.Dir(destination), ".compose-*")
	if err != nil {
		return written{}, err
	}
	err = concatenate(joined, sources)
	err = errors.Join(err, joined.Chown(int(user.UID), int(user.GID)), joined.Chmod(0o644), joined.Close())
	if err == nil {
		err = os.Rename(joined.Name(), destination)
	}
	if err != nil {
		_ = os.Remove(joined.Name())
		return written{}, err
	}
	for _, source := range sources {
		if source != destination {
			_ = os.Remove(source)
		}
	}
	return describe(destination, nil), nil
}

func (f *Files) composePaths(user users.User, request composeRequest) (string, []string, error) {
	if request.Destination == "" || len(request.SourcePaths) == 0 {
		return "", nil, badRequest{errors.New("compose needs a destination and at least one of source_paths")}
	}
	destination, err := f.identity.Path(user, request.Destination)
	if err != nil {
		return "", nil, err
	}
	if info, err := os.Stat(destination); err == nil && !info.Mode().IsRegular() {
		return "", nil, badRequest{fmt.Errorf("destination '%s' is not a regular file", destination)}
	}
	var sources []string
	for _, requested := range request.SourcePaths {
		source, err := f.identity.Path(user, requested)
		if err != nil {
			return "", nil, err
		}
		sources = append(sources, source)
	}
	return destination, sources, nil
}

// concatenate copies inside the kernel where it can (copy_file_range).
func concatenate(into *os.File, sources []string) error {
	for _, source := range sources {
		file, _, err := openRegular(source)
		if err != nil {
			return err
		}
		_, err = io.Copy(into, file)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}
