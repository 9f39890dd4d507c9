package process

import (
	"context"
	"errors"

	pb "aenv.dev/agent/internal/gen/process"
)

// Run runs a command of the agent's own as root to its end; its output goes to the log. When ctx ends first, it is
// killed with everything it has started.
func (s *Service) Run(ctx context.Context, config *pb.ProcessConfig) error {
	root, err := s.Identity.User("root")
	if err != nil {
		return err
	}
	command := &Command{Config: config, User: root}
	if err := command.prepare(s.Identity.Settings.Get(), "/", s.Path); err != nil {
		return errors.Unwrap(err) // without the RPC code
	}
	nobody, leave := context.WithCancel(ctx)
	leave()
	p, unread, err := s.Engine.Start(nobody, command)
	if err != nil {
		return errors.Unwrap(err)
	}
	p.unsubscribe(unread)
	select {
	case <-p.ended:
	case <-ctx.Done():
		_ = s.Engine.Kill(p)
		<-p.ended
		return ctx.Err()
	}
	if end := p.end.GetEnd(); end.GetExitCode() != 0 {
		return errors.New(end.GetStatus())
	}
	return nil
}
