package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// table reads the process table from /proc; zombies are left out.
func table() []kin {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	all := make([]kin, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if stat, err := os.ReadFile("/proc/" + name + "/stat"); err == nil {
			if k, ok := parseStat(pid, stat); ok {
				all = append(all, k)
			}
		}
	}
	return all
}

// parseStat reads "pid (comm) state ppid pgrp session …"; comm may hold blanks and parentheses.
func parseStat(pid int, stat []byte) (kin, bool) {
	k, state := kin{pid: pid}, ""
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return k, false
	}
	_, err := fmt.Sscan(string(stat[end+1:]), &state, &k.parent, &k.group, &k.session)
	return k, err == nil && state != "Z" && state != "X"
}
