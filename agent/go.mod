module aenv.dev/agent

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/creack/pty v1.1.24
	golang.org/x/sys v0.50.0
	google.golang.org/protobuf v1.36.12
)

require github.com/fsnotify/fsnotify v1.10.1
