package server

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "aenv.dev/agent/internal/gen/filesystem"
)

// tree makes files and directories (names ending in "/") below the home.
func (s *sandbox) tree(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(s.home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, []byte(name), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (s *sandbox) link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, filepath.Join(s.home, name)); err != nil {
		t.Fatal(err)
	}
}

func TestStat(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		s.tree(t, "file", "dir/")
		s.link(t, "file", "link")
		s.link(t, "dir", "dirlink")
		s.link(t, "nowhere", "dangling")
		s.link(t, "loop2", "loop1")
		s.link(t, "loop1", "loop2")
		cases := []struct {
			path, name, permissions, target string
			kind                            pb.FileType
			mode                            uint32
		}{
			{"file", "file", "-rw-r-----", "", pb.FileType_FILE_TYPE_FILE, 0o640},
			{"~/dir", "dir", "drwxr-xr-x", "", pb.FileType_FILE_TYPE_DIRECTORY, 0o755},
			{"dir/../link", "link", "Lrwxrwxrwx", "file", pb.FileType_FILE_TYPE_FILE, 0o640},
			{"dirlink", "dirlink", "Lrwxrwxrwx", "dir", pb.FileType_FILE_TYPE_DIRECTORY, 0o755},
			{"dangling", "dangling", "Lrwxrwxrwx", "nowhere", pb.FileType_FILE_TYPE_UNSPECIFIED, 0},
			{"loop1", "loop1", "Lrwxrwxrwx", "loop2", pb.FileType_FILE_TYPE_UNSPECIFIED, 0},
		}
		for _, c := range cases {
			answer, err := s.filesystem(codec).Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: c.path}))
			if err != nil {
				t.Errorf("%s: %v", c.path, err)
				continue
			}
			e := answer.Msg.GetEntry()
			if e.GetName() != c.name || e.GetPath() != filepath.Join(s.home, c.name) || e.GetType() != c.kind ||
				e.GetMode() != c.mode || e.GetPermissions() != c.permissions || e.GetIsSymlink() != (c.target != "") {
				t.Errorf("%s: %v", c.path, e)
			}
			if c.target != "" && e.GetSymlinkTarget() != filepath.Join(s.home, c.target) {
				t.Errorf("%s: target %q", c.path, e.GetSymlinkTarget())
			}
			if e.GetOwner() == "" || e.GetGroup() == "" || time.Since(e.GetModifiedTime().AsTime()) > time.Hour {
				t.Errorf("%s: owner, group or time missing: %v", c.path, e)
			}
		}
		for path, code := range map[string]connect.Code{
			"nope": connect.CodeNotFound, "file/below": connect.CodeInvalidArgument, "~other": connect.CodeInvalidArgument,
			"loop1/x": connect.CodeFailedPrecondition,
		} {
			_, err := s.filesystem(codec).Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: path}))
			wantCode(t, path, err, code)
		}
	})
}

func TestListDir(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		s.tree(t, "d/b", "d/a", "d/c/x", "d/c/deep/y")
		s.link(t, "d", "link")
		s.link(t, "loop", "loop")
		cases := []struct {
			path  string
			depth uint32
			want  []string
		}{
			{"d", 0, []string{"d/a", "d/b", "d/c"}},
			{"d", 1, []string{"d/a", "d/b", "d/c"}},
			{"d", 2, []string{"d/a", "d/b", "d/c", "d/c/deep", "d/c/x"}},
			{"d", 9, []string{"d/a", "d/b", "d/c", "d/c/deep", "d/c/deep/y", "d/c/x"}},
			{"link", 1, []string{"link/a", "link/b", "link/c"}},
		}
		for _, c := range cases {
			list, err := s.filesystem(codec).ListDir(t.Context(), connect.NewRequest(&pb.ListDirRequest{Path: c.path, Depth: c.depth}))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range list.Msg.GetEntries() {
				got = append(got, strings.TrimPrefix(e.GetPath(), s.home+"/"))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s, depth %d: %v, want %v", c.path, c.depth, got, c.want)
			}
		}
		for path, code := range map[string]connect.Code{
			"nope": connect.CodeNotFound, "d/a": connect.CodeInvalidArgument, "loop": connect.CodeFailedPrecondition,
		} {
			_, err := s.filesystem(codec).ListDir(t.Context(), connect.NewRequest(&pb.ListDirRequest{Path: path}))
			wantCode(t, path, err, code)
		}
	})
}

func TestChangesToTheTree(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		client := s.filesystem(codec)
		s.tree(t, "file", "full/x")
		mkdir := func(path string) error {
			_, err := client.MakeDir(t.Context(), connect.NewRequest(&pb.MakeDirRequest{Path: path}))
			return err
		}
		if err := mkdir("new/deep"); err != nil {
			t.Error(err)
		}
		wantCode(t, "making it again", mkdir("new/deep"), connect.CodeAlreadyExists)
		wantCode(t, "making a directory of a file", mkdir("file"), connect.CodeInvalidArgument)
		wantCode(t, "making a directory in a file", mkdir("file/below"), connect.CodeInvalidArgument)

		move := func(source, destination string) error {
			answer, err := client.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: source, Destination: destination}))
			if err == nil && answer.Msg.GetEntry().GetPath() != filepath.Join(s.home, destination) {
				t.Errorf("moved: %v", answer.Msg.GetEntry())
			}
			return err
		}
		if err := move("file", "other/place"); err != nil || read(t, filepath.Join(s.home, "other/place")) != "file" {
			t.Error(err)
		}
		wantCode(t, "moving nothing", move("file", "x"), connect.CodeNotFound)
		wantCode(t, "moving onto a full directory", move("new", "full"), connect.CodeAlreadyExists)
		wantCode(t, "moving a directory into itself", move("new", "new/deep/x"), connect.CodeInvalidArgument)

		remove := func(path string) error {
			_, err := client.Remove(t.Context(), connect.NewRequest(&pb.RemoveRequest{Path: path}))
			return err
		}
		for range 2 { // the second time there is nothing to remove
			if err := remove("full"); err != nil {
				t.Error(err)
			}
		}
		wantCode(t, "removing everything", remove("/"), connect.CodeInvalidArgument)
		wantCode(t, "removing what holds the sandbox", remove(".."), connect.CodeInvalidArgument)
	})
}
