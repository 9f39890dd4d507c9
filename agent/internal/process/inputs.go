package process

import (
	"context"

	"connectrpc.com/connect"

	pb "aenv.dev/agent/internal/gen/process"
)

func (s *Service) SendInput(
	ctx context.Context, request *connect.Request[pb.SendInputRequest],
) (*connect.Response[pb.SendInputResponse], error) {
	p, err := s.Engine.Running(request.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.SendInputResponse{}), p.feed(ctx, request.Msg.GetInput())
}

func (s *Service) StreamInput(
	ctx context.Context, stream *connect.ClientStream[pb.StreamInputRequest],
) (*connect.Response[pb.StreamInputResponse], error) {
	var p *Process
	for stream.Receive() {
		var err error
		switch event := stream.Msg().GetEvent().(type) {
		case *pb.StreamInputRequest_Start:
			p, err = s.Engine.Running(event.Start.GetProcess())
		case *pb.StreamInputRequest_Data:
			if p == nil {
				err = invalid("the stream must start with a start event that names the process")
			} else {
				err = p.feed(ctx, event.Data.GetInput())
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&pb.StreamInputResponse{}), stream.Err()
}

func (s *Service) CloseStdin(
	ctx context.Context, request *connect.Request[pb.CloseStdinRequest],
) (*connect.Response[pb.CloseStdinResponse], error) {
	p, err := s.Engine.Running(request.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&pb.CloseStdinResponse{}), p.input.close(ctx)
}

// feed writes input to the process; input for a terminal needs one, and stdin needs a pipe.
func (p *Process) feed(ctx context.Context, in *pb.ProcessInput) error {
	switch data := in.GetInput().(type) {
	case *pb.ProcessInput_Stdin:
		if p.terminal != nil {
			return errTerminalInput
		}
		return p.input.write(ctx, data.Stdin)
	case *pb.ProcessInput_Pty:
		if p.terminal == nil {
			return errNoTerminal
		}
		return p.input.write(ctx, data.Pty)
	}
	return invalid("the input needs stdin or pty data")
}
