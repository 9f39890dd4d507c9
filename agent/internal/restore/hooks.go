package restore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	pb "aenv.dev/agent/internal/gen/process"
)

const hookFolder = "aenv/restore.d"

// Runner runs a command as root to its end, or kills it when ctx ends.
type Runner func(ctx context.Context, config *pb.ProcessConfig) error

// runHooks runs the folder's hooks by name and returns what went wrong.
func (r *Restorer) runHooks(ctx context.Context, envs map[string]string) []string {
	folder := filepath.Join(r.etc, hookFolder)
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if info, failed := os.Stat(folder); failed == nil {
		err = errors.Join(err, trust(info))
	}
	if err != nil {
		return []string{fmt.Sprintf("restore hooks in %s: %v", folder, err)}
	}
	var failures []string
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if err = r.runHook(ctx, path, info, envs); err != nil {
			failures = append(failures, fmt.Sprintf("restore hook %s: %v", path, err))
		}
	}
	return failures
}

func (r *Restorer) runHook(ctx context.Context, path string, info fs.FileInfo, envs map[string]string) error {
	if err := trust(info); err != nil {
		return err
	}
	err := r.run(ctx, &pb.ProcessConfig{Cmd: path, Envs: envs})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("killed or not run: all hooks together may take %v", workTime)
	}
	return err
}

// trust refuses what somebody else than root could have put there.
func trust(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 0 || info.Mode()&0o022 != 0 {
		return errors.New("not run: it must belong to root and be writable by nobody else")
	}
	return nil
}
