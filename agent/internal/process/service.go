package process

import (
	"context"
	"errors"
	"os"

	"connectrpc.com/connect"

	"aenv.dev/agent/internal/identity"
	"aenv.dev/agent/internal/users"
	"aenv.dev/agent/internal/wire"

	pb "aenv.dev/agent/internal/gen/process"
	"aenv.dev/agent/internal/gen/process/processconnect"
)

// stdoutHeader of a start: "unlogged" keeps stdout, when it is data like an archive, out of the log.
const stdoutHeader = "X-Aenv-Stdout"

// Service serves process.Process.
type Service struct {
	processconnect.UnimplementedProcessHandler
	Engine   *Engine
	Identity *identity.Resolver
	// Path is the PATH that processes get unless the sandbox or the request sets one.
	Path string
}

func (s *Service) List(context.Context, *connect.Request[pb.ListRequest]) (*connect.Response[pb.ListResponse], error) {
	list := &pb.ListResponse{}
	for _, p := range s.Engine.List() {
		list.Processes = append(list.Processes, p.info())
	}
	return connect.NewResponse(list), nil
}

func (s *Service) Start(
	ctx context.Context, request *connect.Request[pb.StartRequest], stream *connect.ServerStream[pb.StartResponse],
) error {
	command, err := s.command(ctx, request)
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	p, sub, err := s.Engine.Start(ctx, command)
	if err != nil {
		return err
	}
	defer context.AfterFunc(p.timesUp, func() { leave(context.DeadlineExceeded) })()
	err = p.follow(ctx, sub, wire.KeepAlive(request.Header()), func(event *pb.ProcessEvent) error {
		if event.GetEnd() != nil && p.expired() {
			return context.DeadlineExceeded
		}
		return stream.Send(&pb.StartResponse{Event: event})
	})
	if p.expired() || errors.Is(err, context.DeadlineExceeded) {
		s.Engine.Expire(p)
		return connect.NewError(connect.CodeDeadlineExceeded,
			errors.New("the command ran longer than its timeout and was killed"))
	}
	return err
}

func (s *Service) Connect(
	ctx context.Context, request *connect.Request[pb.ConnectRequest], stream *connect.ServerStream[pb.ConnectResponse],
) error {
	p, err := s.Engine.Known(request.Msg.GetProcess())
	if err != nil {
		return err
	}
	return p.follow(ctx, p.subscribe(ctx), wire.KeepAlive(request.Header()), func(event *pb.ProcessEvent) error {
		return stream.Send(&pb.ConnectResponse{Event: event})
	})
}

func (s *Service) Update(
	_ context.Context, request *connect.Request[pb.UpdateRequest],
) (*connect.Response[pb.UpdateResponse], error) {
	p, err := s.Engine.Running(request.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if request.Msg.GetPty() != nil {
		err = resize(p.terminal, request.Msg.GetPty().GetSize())
	}
	return connect.NewResponse(&pb.UpdateResponse{}), err
}

func (s *Service) SendSignal(
	_ context.Context, request *connect.Request[pb.SendSignalRequest],
) (*connect.Response[pb.SendSignalResponse], error) {
	p, err := s.Engine.Running(request.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	switch request.Msg.GetSignal() {
	case pb.Signal_SIGNAL_SIGKILL:
		err = s.Engine.Kill(p)
	case pb.Signal_SIGNAL_SIGTERM:
		err = s.Engine.Terminate(p)
	default:
		err = invalid("signal %s is not supported: use SIGNAL_SIGTERM or SIGNAL_SIGKILL", request.Msg.GetSignal())
	}
	if errors.Is(err, os.ErrProcessDone) {
		err = notFound("process with pid %d not found", p.Pid)
	}
	return connect.NewResponse(&pb.SendSignalResponse{}), err
}

// command turns a request into a prepared command. The time limit is the call's own (connect-timeout-ms) but outlives
// its connection.
func (s *Service) command(ctx context.Context, request *connect.Request[pb.StartRequest]) (*Command, error) {
	user, err := s.Identity.Requester(request.Header())
	if err != nil {
		return nil, connect.NewError(connect.CodeUnauthenticated, err)
	}
	message := request.Msg
	c := &Command{
		Config: message.GetProcess(), Tag: message.Tag, User: user,
		Stdin: message.Stdin == nil || message.GetStdin(), // clients older than the field expect stdin
		Quiet: request.Header().Get(stdoutHeader) == "unlogged",
	}
	if message.GetPty() != nil {
		c.Size = message.GetPty().GetSize()
		if c.Size == nil {
			c.Size = &pb.PTY_Size{}
		}
	}
	c.Timeout = timeLimit(ctx)
	dir, err := s.directory(user, c.Config.GetCwd())
	if err != nil {
		return nil, err
	}
	return c, c.prepare(s.Identity.Settings.Get(), dir, s.Path)
}

// directory is where the command starts: a directory that was asked for must exist; without a home it is "/".
func (s *Service) directory(user users.User, requested string) (string, error) {
	if requested == "" {
		dir := s.Identity.Workdir(user)
		if checkDir(dir) != nil {
			return "/", nil
		}
		return dir, nil
	}
	dir, err := s.Identity.Path(user, requested)
	if err != nil {
		return "", invalid("%w", err)
	}
	return dir, checkDir(dir)
}
