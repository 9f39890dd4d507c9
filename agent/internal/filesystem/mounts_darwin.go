package filesystem

import "golang.org/x/sys/unix"

// onNetwork tells whether path lies on a file system whose changes may come from elsewhere, unannounced.
func onNetwork(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Flags&unix.MNT_LOCAL == 0
}
