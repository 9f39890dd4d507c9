package metrics

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the unit of /proc/*/stat: USER_HZ is 100 on every Linux ABI.
const tick = 10 * time.Millisecond

func readMemory() memory {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return memory{}
	}
	fields := map[string]uint64{}
	for line := range bytes.Lines(content) {
		var name string
		var kib uint64
		if n, _ := fmt.Sscan(string(line), &name, &kib); n == 2 {
			fields[name] = kib << 10
		}
	}
	available, ok := fields["MemAvailable:"]
	if !ok {
		available = fields["MemFree:"]
	}
	return memory{total: fields["MemTotal:"], available: available, cache: fields["Cached:"]}
}

// busyTime is the CPU time that the sandbox has used. gVisor's /proc/stat holds zeros, so it is the sum over the
// processes that are alive and the children each has collected.
func busyTime() time.Duration {
	proc, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	var total time.Duration
	for _, name := range names {
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		if stat, err := os.ReadFile("/proc/" + name + "/stat"); err == nil {
			total += processTime(stat)
		}
	}
	return total
}

// processTime adds utime, stime, cutime and cstime, which are fields 12 to 15 after "(comm)".
func processTime(stat []byte) time.Duration {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var ticks int64
	for i := 11; i <= 14 && i < len(fields); i++ {
		n, _ := strconv.ParseInt(string(fields[i]), 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * tick
}
