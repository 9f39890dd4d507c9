package filesystem

import (
	"os"
	"path/filepath"
	"syscall"

	"google.golang.org/protobuf/types/known/timestamppb"

	"aenv.dev/agent/internal/storage"
	"aenv.dev/agent/internal/users"

	pb "aenv.dev/agent/internal/gen/filesystem"
)

// describe tells about the file at path. Of a link, size, times and permissions are its own, type and mode its target's.
func describe(names users.Directory, path string) (*pb.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	entry := &pb.EntryInfo{
		Name:         filepath.Base(path),
		Path:         path,
		Type:         fileType(info.Mode()),
		Size:         info.Size(),
		Mode:         permissionBits(info.Mode()),
		Permissions:  info.Mode().String(),
		ModifiedTime: timestamppb.New(info.ModTime()),
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		entry.Owner, entry.Group = names.UserName(stat.Uid), names.GroupName(stat.Gid)
	}
	if info.Mode()&os.ModeSymlink != 0 {
		describeLink(entry)
	}
	if entry.Type == pb.FileType_FILE_TYPE_FILE || entry.Type == pb.FileType_FILE_TYPE_DIRECTORY {
		entry.Metadata = storage.Metadata(path)
	}
	return entry, nil
}

// describeLink fills in the target; a dangling or cyclic link has no type, and where it points is all there is to say.
func describeLink(entry *pb.EntryInfo) {
	entry.IsSymlink, entry.Type, entry.Mode = true, pb.FileType_FILE_TYPE_UNSPECIFIED, 0
	target, err := filepath.EvalSymlinks(entry.Path)
	if err == nil {
		if info, err := os.Stat(target); err == nil {
			entry.Type, entry.Mode = fileType(info.Mode()), permissionBits(info.Mode())
		}
	} else if target, err = os.Readlink(entry.Path); err == nil && !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(entry.Path), target)
	}
	entry.SymlinkTarget = &target
}

func fileType(mode os.FileMode) pb.FileType {
	switch {
	case mode.IsRegular():
		return pb.FileType_FILE_TYPE_FILE
	case mode.IsDir():
		return pb.FileType_FILE_TYPE_DIRECTORY
	}
	return pb.FileType_FILE_TYPE_UNSPECIFIED
}

func permissionBits(mode os.FileMode) uint32 { return uint32(mode.Perm()) }
