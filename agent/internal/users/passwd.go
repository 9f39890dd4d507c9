package users

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxAccountFile bounds what is read of /etc/passwd and /etc/group: the guest's root writes them.
const maxAccountFile = 1 << 20

// Passwd reads passwd(5) and group(5) and reads them again when they change.
type Passwd struct {
	mu     sync.Mutex
	passwd file[account]
	group  file[group]
}

type account struct {
	name, home string
	uid, gid   uint32
}

type group struct {
	name    string
	gid     uint32
	members []string
}

// NewPasswd reads the account files of the folder etc. Missing files are empty, but root always exists.
func NewPasswd(etc string) *Passwd {
	return &Passwd{
		passwd: file[account]{path: filepath.Join(etc, "passwd"), parse: parseAccount},
		group:  file[group]{path: filepath.Join(etc, "group"), parse: parseGroup},
	}
}

func (p *Passwd) Lookup(name string) (User, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	account, named, grouped := strings.Cut(name, ":")
	a, ok := p.find(account)
	if !ok {
		return User{}, UnknownError{Name: name}
	}
	user := User{Name: a.name, UID: a.uid, GID: a.gid, Home: a.home, Switch: true}
	if !grouped {
		user.Groups = p.groups(a)
		return user, nil
	}
	if user.GID, ok = p.findGroup(named); !ok {
		return User{}, UnknownError{Name: name}
	}
	user.Groups = []uint32{user.GID}
	return user, nil
}

func (p *Passwd) UserName(uid uint32) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.byUID(uid); ok {
		return a.name
	}
	return decimal(uid)
}

func (p *Passwd) GroupName(gid uint32) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.group.records() {
		if g.gid == gid {
			return g.name
		}
	}
	if gid == 0 {
		return "root"
	}
	return decimal(gid)
}

func (p *Passwd) find(name string) (account, bool) {
	for _, a := range p.passwd.records() {
		if a.name == name {
			return a, true
		}
	}
	if name == "root" {
		return p.byUID(0)
	}
	uid, err := strconv.ParseUint(name, 10, 32)
	if err != nil || uid == noID {
		return account{}, false
	}
	if a, ok := p.byUID(uint32(uid)); ok {
		return a, true
	}
	return account{name: decimal(uint32(uid)), uid: uint32(uid), gid: uint32(uid), home: "/"}, true
}

func (p *Passwd) findGroup(name string) (uint32, bool) {
	for _, g := range p.group.records() {
		if g.name == name {
			return g.gid, true
		}
	}
	gid, err := strconv.ParseUint(name, 10, 32)
	return uint32(gid), err == nil && gid != noID
}

func (p *Passwd) byUID(uid uint32) (account, bool) {
	for _, a := range p.passwd.records() {
		if a.uid == uid {
			return a, true
		}
	}
	if uid == 0 {
		return account{name: "root", home: "/root"}, true
	}
	return account{}, false
}

func (p *Passwd) groups(a account) []uint32 {
	gids := []uint32{a.gid}
	for _, g := range p.group.records() {
		for _, member := range g.members {
			if member == a.name && g.gid != a.gid {
				gids = append(gids, g.gid)
				break
			}
		}
	}
	return gids
}

// noID is (uid_t)-1, which setuid(2) and chown(2) take for "unchanged".
const noID = 1<<32 - 1

func parseAccount(fields []string) (account, bool) {
	if len(fields) < 6 || fields[0] == "" {
		return account{}, false
	}
	uid, err1 := strconv.ParseUint(fields[2], 10, 32)
	gid, err2 := strconv.ParseUint(fields[3], 10, 32)
	if err1 != nil || err2 != nil || uid == noID || gid == noID {
		return account{}, false
	}
	home := fields[5]
	if !strings.HasPrefix(home, "/") {
		home = "/"
	}
	return account{name: fields[0], uid: uint32(uid), gid: uint32(gid), home: home}, true
}

func parseGroup(fields []string) (group, bool) {
	if len(fields) < 4 || fields[0] == "" {
		return group{}, false
	}
	gid, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil || gid == noID {
		return group{}, false
	}
	return group{name: fields[0], gid: uint32(gid), members: strings.Split(fields[3], ",")}, true
}

// file is a parsed account file, parsed anew when its size or times differ.
type file[T any] struct {
	path     string
	parse    func(fields []string) (T, bool)
	size     int64
	modified time.Time
	changed  int64
	parsed   []T
}

func (f *file[T]) records() []T {
	info, err := os.Stat(f.path)
	if err != nil || !info.Mode().IsRegular() {
		f.parsed, f.size, f.modified = nil, 0, time.Time{}
		return nil
	}
	if info.Size() == f.size && info.ModTime().Equal(f.modified) && changeTime(info) == f.changed {
		return f.parsed
	}
	content, err := readAtMost(f.path, maxAccountFile)
	if err != nil {
		return nil
	}
	f.size, f.modified, f.changed, f.parsed = info.Size(), info.ModTime(), changeTime(info), nil
	for line := range bytes.Lines(content) {
		fields := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if record, ok := f.parse(fields); ok {
			f.parsed = append(f.parsed, record)
		}
	}
	return f.parsed
}
