package users

import (
	"os"
	"syscall"
)

// changeTime is the inode's change time, which cannot be set back as the modification time can.
func changeTime(info os.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ctimespec.Nano()
	}
	return 0
}
