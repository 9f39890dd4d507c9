// Package users answers who a user name is: ids, groups and home, read from the guest's own account files.
package users

import (
	"fmt"
	"os"
	"strconv"
)

// User is whom a process runs as and whom files belong to. Switch tells whether a process must change its ids.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32
	Home   string
	Switch bool
}

// Directory looks users and groups up.
type Directory interface {
	// Lookup finds a user by name or decimal uid, or fails with UnknownError. As in an image's USER, ":" and a group or
	// gid may follow, which is then the only group.
	Lookup(name string) (User, error)
	// UserName is the name of uid, or its decimal form.
	UserName(uid uint32) string
	// GroupName is the name of gid, or its decimal form.
	GroupName(gid uint32) string
}

// UnknownError says that nobody has this name. Its text is part of the wire contract.
type UnknownError struct{ Name string }

func (e UnknownError) Error() string { return fmt.Sprintf("invalid username: '%s'", e.Name) }

// Single maps every name to the caller, with one home for all.
type Single struct {
	caller User
	names  *Passwd
}

// NewSingle returns the directory of single-user mode.
func NewSingle(home string) *Single {
	names := NewPasswd("/etc")
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	return &Single{names: names, caller: User{Name: names.UserName(uid), UID: uid, GID: gid, Home: home}}
}

func (s *Single) Lookup(string) (User, error) { return s.caller, nil }

func (s *Single) UserName(uid uint32) string { return s.names.UserName(uid) }

func (s *Single) GroupName(gid uint32) string { return s.names.GroupName(gid) }

func decimal(id uint32) string { return strconv.FormatUint(uint64(id), 10) }
