// The guest agent: PID 1 of a sandbox, speaking E2B's envd protocol. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"aenv.dev/agent/internal/auth"
	"aenv.dev/agent/internal/host"
	"aenv.dev/agent/internal/server"
	"aenv.dev/agent/internal/users"
)

// version is set by the linker: -X main.version=…
var version = "dev"

const (
	ownVariables     = "AENV_"
	verifierVariable = "AENV_HOST_VERIFIER"

	// An idle sandbox has 25 MB for everything: collect early, and hard when the heap grows beyond the soft limit.
	gcPercent   = 50
	memoryLimit = 64 << 20
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	listen := flags.String("listen", "0.0.0.0:49983", "TCP `address` to serve on")
	single := flags.Bool("single-user", false, "map every user to the caller; needs --home")
	home := flags.String("home", "", "home and working `directory` of everybody in single-user mode")
	showVersion := flags.Bool("version", false, "print the version and exit")
	if err := flags.Parse(args); err != nil || *showVersion {
		if *showVersion {
			fmt.Println(version)
		}
		return err
	}
	config, err := configure(*single, *home)
	if err != nil {
		return err
	}
	if err := secure(); err != nil {
		return err
	}
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	return serve(*listen, config)
}

func configure(single bool, home string) (server.Config, error) {
	config := server.Config{
		Version: version, Path: os.Getenv("PATH"), Disk: "/", Sync: unixSync,
	}
	if text, set := os.LookupEnv(verifierVariable); set {
		verifier, err := auth.ParseVerifier(text)
		if err != nil {
			return config, fmt.Errorf("%s: %w", verifierVariable, err)
		}
		config.Verifier = verifier
	}
	if single != (home != "") {
		return config, errors.New("--single-user and --home go together")
	}
	if !single {
		config.Users = users.NewPasswd("/etc")
		config.System = &host.System{
			Etc: "/etc", DBus: "/var/lib/dbus", SetHostname: setHostname,
			MakeFolder: func(path string) { _ = os.MkdirAll(path, 0o755) },
		}
		config.Run = "/run"
		return config, nil
	}
	home, err := filepath.Abs(home)
	if err != nil {
		return config, err
	}
	config.Users, config.Disk = users.NewSingle(home), home
	return config, nil
}

func serve(listen string, config server.Config) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// Taken and dropped, rather than ignored, which children would inherit: a lost terminal or a broken stderr must not
	// end the sandbox.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGQUIT)
	agent, err := server.New(config)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "agent: listening on", listener.Addr())
	if err := agent.Serve(ctx, listener); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// secure forgets the agent's own variables and closes its memory to the guest's root.
func secure() error {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, ownVariables) {
			_ = os.Unsetenv(name)
		}
	}
	unix.Umask(0o022)
	return harden()
}

func unixSync() { unix.Sync() }
