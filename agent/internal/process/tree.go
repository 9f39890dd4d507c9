package process

import (
	"syscall"
	"time"
)

// kin is one row of the system's process table.
type kin struct{ pid, parent, group, session int }

// maxRounds bounds the hunt for processes that fork while they are hunted.
const maxRounds = 64

// killTree kills root, everything in its session and group, and all their descendants, sessions of their own included.
// The members are stopped first, so that none can fork or lose its parent meanwhile. A daemon that has left both its
// session and its parents before is no longer part of the tree.
func killTree(root int, self int) {
	found := map[int]bool{}
	for range maxRounds {
		before := len(found)
		for _, pid := range members(table(), root, self) {
			if !found[pid] {
				found[pid] = true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if len(found) == before {
			break
		}
	}
	for pid := range found {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// members selects root's tree from the process table; self and what is above it are never part of it.
func members(all []kin, root, self int) []int {
	in := map[int]bool{root: true}
	for grown := true; grown; {
		grown = false
		for _, k := range all {
			if in[k.pid] || k.pid == self || k.pid == 1 {
				continue
			}
			if in[k.parent] || k.session == root || k.group == root {
				in[k.pid], grown = true, true
			}
		}
	}
	var pids []int
	for _, k := range all {
		if in[k.pid] {
			pids = append(pids, k.pid)
		}
	}
	return pids
}

// descendants selects everything below self.
func descendants(all []kin, self int) []int {
	in := map[int]bool{self: true}
	for grown := true; grown; {
		grown = false
		for _, k := range all {
			if !in[k.pid] && in[k.parent] {
				in[k.pid], grown = true, true
			}
		}
	}
	var pids []int
	for _, k := range all {
		if in[k.pid] && k.pid != self {
			pids = append(pids, k.pid)
		}
	}
	return pids
}

// killDescendants kills everything below self, until nothing is left or patience ends.
func killDescendants(self int, patience time.Duration) {
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		pids := descendants(table(), self)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
