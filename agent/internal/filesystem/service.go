// Package filesystem serves filesystem.Filesystem: entries, changes to the tree, and watchers.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"aenv.dev/agent/internal/identity"
	"aenv.dev/agent/internal/storage"
	"aenv.dev/agent/internal/users"

	pb "aenv.dev/agent/internal/gen/filesystem"
	"aenv.dev/agent/internal/gen/filesystem/filesystemconnect"
)

// maxEntries bounds one listing, which is built in memory.
const maxEntries = 100_000

// Service serves filesystem.Filesystem. It acts as the agent, on behalf of users: the user of a request decides what
// relative paths mean and whom new files belong to.
type Service struct {
	filesystemconnect.UnimplementedFilesystemHandler
	Identity *identity.Resolver
	Watchers *Watchers
}

func (s *Service) Stat(
	_ context.Context, request *connect.Request[pb.StatRequest],
) (*connect.Response[pb.StatResponse], error) {
	_, path, err := s.locate(request.Header(), request.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	entry, err := s.entry(path)
	return connect.NewResponse(&pb.StatResponse{Entry: entry}), err
}

func (s *Service) MakeDir(
	_ context.Context, request *connect.Request[pb.MakeDirRequest],
) (*connect.Response[pb.MakeDirResponse], error) {
	user, path, err := s.locate(request.Header(), request.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return nil, failure(connect.CodeAlreadyExists, "directory already exists: %s", path)
		}
		return nil, failure(connect.CodeInvalidArgument, "path already exists but it is not a directory: %s", path)
	}
	if err := storage.MakeDirs(path, user); err != nil {
		return nil, explain(err)
	}
	entry, err := s.entry(path)
	return connect.NewResponse(&pb.MakeDirResponse{Entry: entry}), err
}

func (s *Service) Move(
	ctx context.Context, request *connect.Request[pb.MoveRequest],
) (*connect.Response[pb.MoveResponse], error) {
	user, source, err := s.locate(request.Header(), request.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	_, destination, err := s.locate(request.Header(), request.Msg.GetDestination())
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(source); errors.Is(err, fs.ErrNotExist) {
		return nil, failure(connect.CodeNotFound, "source file not found: %s", source)
	}
	if err := storage.MakeDirs(filepath.Dir(destination), user); err != nil {
		return nil, explain(err)
	}
	err = os.Rename(source, destination)
	if errors.Is(err, syscall.EXDEV) {
		err = moveAcross(ctx, source, destination)
	}
	if err != nil {
		return nil, explain(err)
	}
	entry, err := s.entry(destination)
	return connect.NewResponse(&pb.MoveResponse{Entry: entry}), err
}

func (s *Service) Remove(
	_ context.Context, request *connect.Request[pb.RemoveRequest],
) (*connect.Response[pb.RemoveResponse], error) {
	user, path, err := s.locate(request.Header(), request.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if path == "/" || !user.Switch && strings.HasPrefix(user.Home, path+"/") {
		return nil, failure(connect.CodeInvalidArgument, "'%s' cannot be removed: the sandbox lives in it", path)
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, explain(err)
	}
	return connect.NewResponse(&pb.RemoveResponse{}), nil
}

func (s *Service) ListDir(
	ctx context.Context, request *connect.Request[pb.ListDirRequest],
) (*connect.Response[pb.ListDirResponse], error) {
	_, path, err := s.locate(request.Header(), request.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	resolved, err := directory(path)
	if err != nil {
		return nil, err
	}
	list := &pb.ListDirResponse{}
	err = s.walk(ctx, path, resolved, max(request.Msg.GetDepth(), 1), func(entry *pb.EntryInfo) error {
		if len(list.Entries) == maxEntries {
			return failure(connect.CodeResourceExhausted,
				"there are more than %d entries: list with a smaller depth, or a smaller directory", maxEntries)
		}
		list.Entries = append(list.Entries, entry)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(list), nil
}

// walk visits the entries below resolved in lexical order, depth levels deep, and shows them below path. Links inside
// are not followed; what vanishes meanwhile is left out.
func (s *Service) walk(
	ctx context.Context, path, resolved string, depth uint32, visit func(*pb.EntryInfo) error,
) error {
	names, err := os.ReadDir(resolved)
	if err != nil {
		return explain(err)
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		entry, err := describe(s.Identity.Users, filepath.Join(resolved, name.Name()))
		if err != nil {
			continue
		}
		entry.Path = filepath.Join(path, name.Name())
		if err := visit(entry); err != nil {
			return err
		}
		if name.IsDir() && depth > 1 {
			err := s.walk(ctx, entry.Path, filepath.Join(resolved, name.Name()), depth-1, visit)
			if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
				return err
			}
		}
	}
	return nil
}

func (s *Service) entry(path string) (*pb.EntryInfo, error) {
	entry, err := describe(s.Identity.Users, path)
	if err != nil {
		return nil, explain(err)
	}
	return entry, nil
}

// locate tells who asks and which path is meant.
func (s *Service) locate(header http.Header, requested string) (users.User, string, error) {
	user, err := s.Identity.Requester(header)
	if err != nil {
		return user, "", connect.NewError(connect.CodeUnauthenticated, err)
	}
	path, err := s.Identity.Path(user, requested)
	if err != nil {
		return user, "", connect.NewError(connect.CodeInvalidArgument, err)
	}
	return user, path, nil
}

// directory resolves the links of path, which must lead to a directory.
func directory(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", explain(err)
	}
	if !info.IsDir() {
		return "", failure(connect.CodeInvalidArgument, "path is not a directory: %s", path)
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", explain(err)
	}
	return resolved, nil
}

// explain gives an error of the file system its code.
func explain(err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = connect.CodeNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		code = connect.CodePermissionDenied
	case errors.Is(err, fs.ErrExist), errors.Is(err, syscall.ENOTEMPTY):
		code = connect.CodeAlreadyExists
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EBUSY):
		code = connect.CodeFailedPrecondition
	case storage.IsFull(err):
		code = connect.CodeResourceExhausted
	case storage.IsBadPath(err):
		code = connect.CodeInvalidArgument
	}
	return connect.NewError(code, err)
}

func failure(code connect.Code, format string, args ...any) error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}
