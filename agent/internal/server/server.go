// Package server puts the agent's parts together behind one HTTP handler.
package server

import (
	"context"
	"log"
	"math"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"aenv.dev/agent/internal/auth"
	"aenv.dev/agent/internal/builds"
	"aenv.dev/agent/internal/clock"
	"aenv.dev/agent/internal/files"
	"aenv.dev/agent/internal/filesystem"
	"aenv.dev/agent/internal/gen/filesystem/filesystemconnect"
	"aenv.dev/agent/internal/gen/process/processconnect"
	"aenv.dev/agent/internal/host"
	"aenv.dev/agent/internal/identity"
	"aenv.dev/agent/internal/logs"
	"aenv.dev/agent/internal/metrics"
	"aenv.dev/agent/internal/process"
	"aenv.dev/agent/internal/reaper"
	"aenv.dev/agent/internal/restore"
	"aenv.dev/agent/internal/settings"
	"aenv.dev/agent/internal/users"
	"aenv.dev/agent/internal/wire"
)

const (
	// maxMessage bounds one message of an RPC.
	maxMessage = 16 << 20
	maxHeader  = 64 << 10
	// An idle connection outlives the idle time of any pool in front, so that the client closes first.
	idleConnection = 15 * time.Minute
	headerTime     = time.Minute
)

// Config is what differs between the agent as PID 1, in single-user mode, and under test.
type Config struct {
	Version  string
	Verifier *auth.Verifier // nil: no host
	Users    users.Directory
	System   *host.System // nil: the machine is not ours to configure
	Run      string       // the folder for runtime files, as /run; used with System only
	Path     string       // PATH for processes
	Disk     string       // the file system that /metrics reports
	Sync     func()
}

// Agent is the whole agent but its listener.
type Agent struct {
	handler  http.Handler
	engine   *process.Engine
	reaper   *reaper.Reaper
	restorer *restore.Restorer // nil: the machine is not ours
	log      *logs.Ring
}

// New wires the agent.
func New(config Config) (*Agent, error) {
	store := settings.NewStore()
	guard := auth.NewGuard(store, config.Verifier, time.Now)
	ring := logs.NewRing(time.Now)
	reap := reaper.New()
	running := clock.New()
	engine, err := process.NewEngine(reap, ring, running)
	if err != nil {
		return nil, err
	}
	resolver := &identity.Resolver{Users: config.Users, Settings: store}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.Handle("GET /metrics", guard.Token(metrics.NewMeter(config.Disk)))
	mux.Handle("GET /envs", guard.Token(environment(store)))
	mux.HandleFunc("/", wire.NotFound)
	files.New(resolver, guard, running).Routes(mux)
	processes := &process.Service{Engine: engine, Identity: resolver, Path: config.Path}
	var restorer *restore.Restorer
	if config.System != nil {
		restorer = restore.New(config.System.Etc, config.Run, ring, processes.Run)
	}
	(&host.Host{
		Settings: store, Guard: guard, Log: ring, System: config.System, Sync: config.Sync, Restorer: restorer,
		Processes: func() int { return len(engine.List()) }, Version: config.Version, Started: time.Now(),
	}).Routes(mux)
	if config.System != nil {
		(&builds.Builds{Identity: resolver, Clock: running, Etc: config.System.Etc, Homes: "/home"}).Routes(mux, guard.Host)
	}
	path, handler := processconnect.NewProcessHandler(processes, options()...)
	mux.Handle(path, guard.Token(process.LimitRunningTime(handler)))
	path, handler = filesystemconnect.NewFilesystemHandler(
		&filesystem.Service{Identity: resolver, Watchers: filesystem.NewWatchers()}, options()...)
	mux.Handle(path, guard.Token(handler))
	return &Agent{handler: mux, engine: engine, reaper: reap, restorer: restorer, log: ring}, nil
}

// options: answers are never compressed, messages are bounded, and a panic is the failure of one call.
func options() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCompressMinBytes(math.MaxInt),
		connect.WithReadMaxBytes(maxMessage),
		connect.WithRecover(func(_ context.Context, _ connect.Spec, _ http.Header, cause any) error {
			return connect.NewError(connect.CodeInternal, panicError{cause})
		}),
	}
}

// Serve answers on the listener and reaps children until ctx ends; then it kills what runs.
func (a *Agent) Serve(ctx context.Context, listener net.Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	server := &http.Server{
		Handler: a.handler, ErrorLog: log.New(complaints{a.log}, "", 0),
		ReadHeaderTimeout: headerTime, IdleTimeout: idleConnection, MaxHeaderBytes: maxHeader,
	}
	go func() { stop(a.reaper.Run(ctx)) }()
	if a.restorer != nil {
		a.restorer.Start(ctx)
	}
	go func() { stop(server.Serve(listener)) }()
	<-ctx.Done()
	a.engine.Close()
	_ = server.Close()
	return context.Cause(ctx)
}

func environment(store *settings.Store) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		variables := store.Get().EnvVars
		if variables == nil {
			variables = map[string]string{}
		}
		wire.JSON(w, http.StatusOK, variables)
	})
}
