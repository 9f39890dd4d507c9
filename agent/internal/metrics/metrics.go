// Package metrics measures the sandbox from inside: /metrics.
package metrics

import (
	"net/http"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"aenv.dev/agent/internal/wire"
)

// Sample is the body of GET /metrics: bytes, and CPU use in per cent of all CPUs since the sample before.
type Sample struct {
	Timestamp  int64   `json:"ts"`
	CPUCount   int     `json:"cpu_count"`
	CPUUsed    float64 `json:"cpu_used_pct"`
	MemTotal   uint64  `json:"mem_total"`
	MemUsed    uint64  `json:"mem_used"`
	MemCache   uint64  `json:"mem_cache"`
	MemTotalMB uint64  `json:"mem_total_mib"`
	MemUsedMB  uint64  `json:"mem_used_mib"`
	DiskUsed   uint64  `json:"disk_used"`
	DiskTotal  uint64  `json:"disk_total"`
}

type memory struct{ total, available, cache uint64 }

// Meter remembers the CPU time of the last sample.
type Meter struct {
	disk string
	mu   sync.Mutex
	busy time.Duration
	at   time.Time
	last float64
}

// shortest is the span below which a CPU figure would be noise.
const shortest = 100 * time.Millisecond

// NewMeter measures the file system at disk.
func NewMeter(disk string) *Meter { return &Meter{disk: disk, busy: busyTime(), at: time.Now()} }

func (m *Meter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	wire.JSON(w, http.StatusOK, m.Sample())
}

// Sample measures now.
func (m *Meter) Sample() Sample {
	mem := readMemory()
	s := Sample{
		Timestamp: time.Now().Unix(), CPUCount: runtime.NumCPU(), CPUUsed: m.cpu(),
		MemTotal: mem.total, MemUsed: mem.total - min(mem.available, mem.total), MemCache: mem.cache,
	}
	s.MemTotalMB, s.MemUsedMB = s.MemTotal>>20, s.MemUsed>>20
	var fs unix.Statfs_t
	if unix.Statfs(m.disk, &fs) == nil {
		s.DiskTotal = fs.Blocks * uint64(fs.Bsize)
		s.DiskUsed = (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)
	}
	return s
}

func (m *Meter) cpu() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	span := time.Since(m.at)
	if span < shortest {
		return m.last
	}
	busy := busyTime()
	used := 100 * float64(busy-m.busy) / float64(span) / float64(runtime.NumCPU())
	m.busy, m.at, m.last = busy, time.Now(), max(0, min(100, used))
	return m.last
}
