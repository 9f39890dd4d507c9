package metrics

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func readMemory() memory {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return memory{}
	}
	free, _ := unix.SysctlUint32("vm.page_free_count")
	return memory{total: total, available: uint64(free) * uint64(syscall.Getpagesize())}
}

// busyTime is the time of the agent and the children it has collected.
func busyTime() time.Duration {
	var total time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if unix.Getrusage(who, &usage) == nil {
			total += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		}
	}
	return total
}
