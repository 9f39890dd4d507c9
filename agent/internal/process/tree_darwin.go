package process

import "golang.org/x/sys/unix"

// zombieState is SZOMB of sys/proc.h.
const zombieState = 5

// table reads the process table; macOS does not tell sessions, groups have to do.
func table() []kin {
	processes, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return nil
	}
	var all []kin
	for _, p := range processes {
		if p.Proc.P_stat != zombieState {
			all = append(all, kin{pid: int(p.Proc.P_pid), parent: int(p.Eproc.Ppid), group: int(p.Eproc.Pgid)})
		}
	}
	return all
}
