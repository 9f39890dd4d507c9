package process

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"aenv.dev/agent/internal/settings"
	"aenv.dev/agent/internal/users"

	pb "aenv.dev/agent/internal/gen/process"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Command is a request to start a process, with everything about it decided.
type Command struct {
	Config  *pb.ProcessConfig
	Tag     *string
	Size    *pb.PTY_Size // nil: no terminal
	Stdin   bool
	Quiet   bool // what it writes to stdout is for its starter alone: not logged
	User    users.User
	Timeout time.Duration // 0: none
	name    string        // the program's argv[0]
	path    string
	dir     string
	env     []string
}

// prepare finds the program, the working directory and the environment. Its errors are Connect errors.
func (c *Command) prepare(s *settings.Settings, dir string, inheritedPath string) error {
	c.dir = dir
	env := environment(s, c.User, c.Config.GetEnvs(), inheritedPath)
	if c.Size != nil && env["TERM"] == "" {
		env["TERM"] = "xterm-256color"
	}
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return invalid("invalid environment variable %q", name)
		}
		c.env = append(c.env, name+"="+value)
	}
	for _, arg := range append([]string{c.Config.GetCmd()}, c.Config.GetArgs()...) {
		if strings.ContainsRune(arg, 0) {
			return invalid("the command line contains a NUL byte")
		}
	}
	path, err := lookPath(c.Config.GetCmd(), c.dir, env["PATH"])
	c.name, c.path = c.Config.GetCmd(), shell(path, isProgram)
	if c.path != path {
		c.name = c.path // busybox is what it is called
	}
	return err
}

// shells stand in for bash, in this order, where an image has none: clients send all their commands to /bin/bash.
var shells = []string{bash, "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh", "/busybox/sh"}

const bash = "/bin/bash"

// shell is path, or else the first shell there is if path is bash.
func shell(path string, exists func(string) bool) string {
	if path != bash {
		return path
	}
	for _, candidate := range shells {
		if exists(candidate) {
			return candidate
		}
	}
	return path
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// environment is, from weak to strong: the account, the sandbox's identity, its variables, the request's variables.
func environment(
	s *settings.Settings, user users.User, requested map[string]string, inheritedPath string,
) map[string]string {
	if inheritedPath == "" {
		inheritedPath = defaultPath
	}
	env := map[string]string{
		"PATH": inheritedPath, "HOME": user.Home, "USER": user.Name, "LOGNAME": user.Name, "E2B_SANDBOX": "true",
	}
	if s.SandboxID != "" {
		env["E2B_SANDBOX_ID"] = s.SandboxID
	}
	if s.TemplateID != "" {
		env["E2B_TEMPLATE_ID"] = s.TemplateID
	}
	maps.Copy(env, s.EnvVars)
	maps.Copy(env, requested)
	return env
}

// lookPath resolves a command name as execvp(3) does, with the child's own PATH and working directory.
func lookPath(name, dir, path string) (string, error) {
	if name == "" {
		return "", invalid("the command is empty")
	}
	if strings.Contains(name, "/") {
		return name, nil // execve tells what is wrong with it
	}
	for _, folder := range filepath.SplitList(path) {
		candidate := filepath.Join(folder, name)
		if !filepath.IsAbs(candidate) {
			candidate = filepath.Join(dir, candidate)
		}
		if isProgram(candidate) {
			return candidate, nil
		}
	}
	return "", because(reasonNotFound, invalid("command '%s' not found in PATH (%s)", name, path))
}

// checkDir refuses a working directory that is not there.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return invalid("cwd '%s' does not exist", dir)
	case err != nil:
		return invalid("cwd '%s' cannot be used: %v", dir, err)
	case !info.IsDir():
		return invalid("cwd '%s' is not a directory", dir)
	}
	return nil
}

// startError explains why fork or exec failed.
func (c *Command) startError(err error) error {
	if c.path == bash && errors.Is(err, syscall.ENOENT) && !isProgram(bash) {
		return because(reasonNotFound,
			invalid("this sandbox has no shell: neither bash nor sh; start a program with its arguments instead"))
	}
	text := fmt.Errorf("error starting process '%s' in '%s' as '%s': %w", c.Config.GetCmd(), c.dir, c.User.Name, err)
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE):
		return connect.NewError(connect.CodeResourceExhausted, text)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return because(reasonNotExecutable, connect.NewError(connect.CodePermissionDenied, text))
	case errors.Is(err, syscall.ENOENT):
		return because(reasonNotFound, connect.NewError(connect.CodeInvalidArgument, text))
	case errors.Is(err, syscall.ENOEXEC):
		return because(reasonNotExecutable, connect.NewError(connect.CodeInvalidArgument, text))
	}
	return connect.NewError(connect.CodeInvalidArgument, text)
}

// Why a command did not start, where a shell has an exit code of its own for it.
const (
	reasonHeader        = "X-Aenv-Reason"
	reasonNotFound      = "command-not-found"      // 127
	reasonNotExecutable = "command-not-executable" // 126
)

func because(reason string, err *connect.Error) error {
	err.Meta().Set(reasonHeader, reason)
	return err
}

// attributes puts the process into a session of its own, as the user.
func (c *Command) attributes(files []uintptr) *syscall.ProcAttr {
	sys := &syscall.SysProcAttr{Setsid: true}
	if c.Size != nil {
		sys.Setctty = true // descriptor 0 of the child
	}
	if c.User.Switch {
		sys.Credential = &syscall.Credential{Uid: c.User.UID, Gid: c.User.GID, Groups: c.User.Groups}
	}
	return &syscall.ProcAttr{Dir: c.dir, Env: c.env, Files: files, Sys: sys}
}

func invalid(format string, args ...any) *connect.Error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
