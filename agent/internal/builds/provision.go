package builds

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"aenv.dev/agent/internal/storage"
	"aenv.dev/agent/internal/users"
)

const (
	firstUser = 1000
	lastUser  = 60000
	maxFile   = 1 << 20
)

var accountName = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

// provision writes the account, its group, its home and its sudo rule as files: an image may hold no program to do so.
func provision(etc, homes, name string) error {
	if !accountName.MatchString(name) {
		return refuse("'%s' is no name for an account", name)
	}
	passwd, err := readRecords(filepath.Join(etc, "passwd"))
	if err != nil {
		return err
	}
	if _, found := passwd.find(name); !found {
		if err := addAccount(etc, homes, name, passwd); err != nil {
			return err
		}
	}
	return allowSudo(etc, name)
}

func addAccount(etc, homes, name string, passwd records) error {
	group, err := readRecords(filepath.Join(etc, "group"))
	if err != nil {
		return err
	}
	id, err := freeID(passwd, group)
	if err != nil {
		return err
	}
	home := filepath.Join(homes, name)
	if gid, found := group.find(name); found {
		if id.gid, err = strconv.Atoi(gid[2]); err != nil {
			return refuse("the group '%s' of the image has no number", name)
		}
	} else if err := group.add(fmt.Sprintf("%s:x:%d:", name, id.gid)); err != nil {
		return err
	}
	if !passwd.exist { // processes look root up too
		if err := passwd.add("root:x:0:0:root:/root:" + shellOf(etc)); err != nil {
			return err
		}
	}
	shadow, err := readRecords(filepath.Join(etc, "shadow"))
	if err != nil {
		return err
	}
	if _, found := shadow.find(name); !found && shadow.exist {
		if err := shadow.add(name + ":*:19000:0:99999:7:::"); err != nil {
			return err
		}
	}
	if err := passwd.add(fmt.Sprintf("%s:%s:%d:%d::%s:%s", name, password(shadow), id.uid, id.gid, home, shellOf(etc))); err != nil {
		return err
	}
	owner := users.User{Name: name, UID: uint32(id.uid), GID: uint32(id.gid)}
	if err := storage.MakeDirs(home, owner); err != nil {
		return err
	}
	return os.Chmod(home, 0o755)
}

type ids struct{ uid, gid int }

// freeID is the first number that is neither a user's nor a group's.
func freeID(passwd, group records) (ids, error) {
	taken := map[string]bool{}
	for _, of := range []records{passwd, group} {
		for _, fields := range of.all {
			if len(fields) > 2 {
				taken[fields[2]] = true
			}
		}
	}
	for id := firstUser; id <= lastUser; id++ {
		if !taken[strconv.Itoa(id)] {
			return ids{id, id}, nil
		}
	}
	return ids{}, refuse("the image has no free user number")
}

// password sends the look-up of a password to the shadow file, if there is one.
func password(shadow records) string {
	if shadow.exist {
		return "x"
	}
	return "*"
}

func shellOf(etc string) string {
	if _, err := os.Stat(filepath.Join(etc, "..", "bin", "bash")); err == nil {
		return "/bin/bash"
	}
	return "/bin/sh"
}

func allowSudo(etc, name string) error {
	folder := filepath.Join(etc, "sudoers.d")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	rule := filepath.Join(folder, "90-"+name)
	if _, err := os.Lstat(rule); err == nil {
		return nil
	}
	return os.WriteFile(rule, []byte(name+" ALL=(ALL:ALL) NOPASSWD: ALL\n"), 0o440)
}

// records are the lines of an account file, in fields.
type records struct {
	path  string
	exist bool
	open  bool // the last line lacks its end
	all   [][]string
}

func readRecords(path string) (records, error) {
	found := records{path: path}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return found, refuse("'%s' of the image is no account file", path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return found, err
	}
	found.exist = true
	found.open = len(content) > 0 && content[len(content)-1] != '\n'
	for line := range strings.SplitSeq(string(content), "\n") {
		if line != "" {
			found.all = append(found.all, strings.Split(line, ":"))
		}
	}
	return found, nil
}

func (r *records) find(name string) ([]string, bool) {
	for _, fields := range r.all {
		if fields[0] == name && len(fields) > 2 {
			return fields, true
		}
	}
	return nil, false
}

func (r *records) add(line string) error {
	if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	if r.open {
		line = "\n" + line
	}
	_, err = file.WriteString(line + "\n")
	r.open, r.exist = false, true
	return errors.Join(err, file.Close())
}
