package users

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const passwdFile = `root:x:0:0:root:/root:/bin/bash
# a comment
user:x:1000:1000::/home/user:/bin/bash
broken:x:abc:1
short:x:7
nobody:x:65534:65534::nonsense:/bin/false
minusone:x:4294967295:4294967295::/:/bin/sh
`

const groupFile = `root:x:0:
user:x:1000:
docker:x:999:other,user
sudo:x:27:user
`

func etc(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLookup(t *testing.T) {
	full := map[string]string{"passwd": passwdFile, "group": groupFile}
	cases := []struct {
		name  string
		files map[string]string
		want  User // zero: unknown
	}{
		{"user", full, User{Name: "user", UID: 1000, GID: 1000, Groups: []uint32{1000, 999, 27}, Home: "/home/user", Switch: true}},
		{"1000", full, User{Name: "user", UID: 1000, GID: 1000, Groups: []uint32{1000, 999, 27}, Home: "/home/user", Switch: true}},
		{"4711", full, User{Name: "4711", UID: 4711, GID: 4711, Groups: []uint32{4711}, Home: "/", Switch: true}},
		{"nobody", full, User{Name: "nobody", UID: 65534, GID: 65534, Groups: []uint32{65534}, Home: "/", Switch: true}},
		{"user:docker", full, User{Name: "user", UID: 1000, GID: 999, Groups: []uint32{999}, Home: "/home/user", Switch: true}},
		{"4711:33", full, User{Name: "4711", UID: 4711, GID: 33, Groups: []uint32{33}, Home: "/", Switch: true}},
		{"4711:33", nil, User{Name: "4711", UID: 4711, GID: 33, Groups: []uint32{33}, Home: "/", Switch: true}},
		{"user:nogroup", full, User{}},
		{"user:", full, User{}},
		{"user:-1", full, User{}},
		{"user:4294967295", full, User{}},
		{"root", nil, User{Name: "root", Groups: []uint32{0}, Home: "/root", Switch: true}},
		{"0", nil, User{Name: "root", Groups: []uint32{0}, Home: "/root", Switch: true}},
		{"user", nil, User{}},
		{"broken", full, User{}},
		{"short", full, User{}},
		{"minusone", full, User{}},
		{"4294967295", full, User{}},
		{"-1", full, User{}},
		{"", full, User{}},
	}
	for _, c := range cases {
		got, err := NewPasswd(etc(t, c.files)).Lookup(c.name)
		if c.want.Name == "" {
			if !errors.As(err, &UnknownError{}) {
				t.Errorf("Lookup(%q) = %+v, %v, want an UnknownError", c.name, got, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("Lookup(%q) = %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
}

func TestUnknownUserIsNamedAsTheContractSays(t *testing.T) {
	_, err := NewPasswd(t.TempDir()).Lookup("root123")
	if err == nil || err.Error() != "invalid username: 'root123'" {
		t.Errorf("error = %v", err)
	}
}

func TestAccountsAddedLaterAreSeen(t *testing.T) {
	dir := etc(t, map[string]string{"passwd": passwdFile})
	p := NewPasswd(dir)
	if _, err := p.Lookup("late"); err == nil {
		t.Fatal("late is known too early")
	}
	path := filepath.Join(dir, "passwd")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	content := strings.Replace(passwdFile, "user:", "late:", 1)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	// Even a file of the old size and modification time is read again.
	if err := os.Chtimes(path, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
	if user, err := p.Lookup("late"); err != nil || user.UID != 1000 {
		t.Errorf("Lookup(late) = %+v, %v", user, err)
	}
}

func TestNames(t *testing.T) {
	p := NewPasswd(etc(t, map[string]string{"passwd": passwdFile, "group": groupFile}))
	for id, want := range map[uint32]string{0: "root", 1000: "user", 77: "77"} {
		if got := p.UserName(id); got != want {
			t.Errorf("UserName(%d) = %q, want %q", id, got, want)
		}
	}
	for id, want := range map[uint32]string{0: "root", 999: "docker", 77: "77"} {
		if got := p.GroupName(id); got != want {
			t.Errorf("GroupName(%d) = %q, want %q", id, got, want)
		}
	}
}

func TestSingleUserMapsEverybodyToTheCaller(t *testing.T) {
	s := NewSingle("/somewhere")
	for _, name := range []string{"root", "user", "nobody-knows"} {
		user, err := s.Lookup(name)
		if err != nil || user.UID != uint32(os.Getuid()) || user.Home != "/somewhere" || user.Switch {
			t.Errorf("Lookup(%q) = %+v, %v", name, user, err)
		}
	}
}
