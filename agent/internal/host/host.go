// Package host serves the endpoints that only the sandbox's host may call: /init and /aenv/*.
package host

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"aenv.dev/agent/internal/auth"
	"aenv.dev/agent/internal/logs"
	"aenv.dev/agent/internal/restore"
	"aenv.dev/agent/internal/settings"
	"aenv.dev/agent/internal/wire"
)

const (
	defaultLimit = 1000
	maxLimit     = 10_000
	maxWait      = 60 * time.Second
)

// Host answers the host. System is nil in single-user mode, where the machine is not the agent's to configure.
type Host struct {
	Settings  *settings.Store
	Guard     *auth.Guard
	Log       *logs.Ring
	System    *System
	Processes func() int
	Sync      func()
	Version   string
	Started   time.Time
	Restorer  *restore.Restorer // nil in single-user mode

	initialising sync.Mutex
	failures     []string // of the present life's beginning
}

// Routes registers the host's endpoints behind the host's secret.
func (h *Host) Routes(mux *http.ServeMux) {
	mux.Handle("POST /init", h.Guard.Host(http.HandlerFunc(h.init)))
	mux.Handle("GET /aenv/health", h.Guard.Host(http.HandlerFunc(h.health)))
	mux.Handle("GET /aenv/logs", h.Guard.Host(http.HandlerFunc(h.logs)))
	mux.Handle("POST /aenv/sync", h.Guard.Host(http.HandlerFunc(h.sync)))
}

func (h *Host) health(w http.ResponseWriter, _ *http.Request) {
	wire.JSON(w, http.StatusOK, map[string]any{
		"version":     h.Version,
		"pid":         os.Getpid(),
		"uptime":      time.Since(h.Started).Seconds(),
		"processes":   h.Processes(),
		"initialised": h.Settings.Get().Initialised,
	})
}

func (h *Host) sync(w http.ResponseWriter, _ *http.Request) {
	h.Sync()
	w.WriteHeader(http.StatusNoContent)
}

func (h *Host) logs(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	after, err1 := number(query.Get("after"), 0)
	limit, err2 := number(query.Get("limit"), defaultLimit)
	wait, err3 := seconds(query.Get("wait"))
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			wire.Fail(w, http.StatusBadRequest, err.Error())
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	wire.JSON(w, http.StatusOK, h.Log.Read(ctx, after, int(min(max(limit, 1), maxLimit))))
}

func number(text string, otherwise uint64) (uint64, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("'%s' is not a number", text)
	}
	return n, nil
}

func seconds(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= 0) {
		return 0, fmt.Errorf("'%s' is not a number of seconds", text)
	}
	return time.Duration(min(n, maxWait.Seconds()) * float64(time.Second)), nil
}
