package process

import (
	"context"
	"time"

	pb "aenv.dev/agent/internal/gen/process"
)

// follow sends a subscriber's events: the start, output as it comes, keepalives in silence, and the end. It returns
// when the process has ended, sending fails, or ctx ends.
func (p *Process) follow(
	ctx context.Context, s *subscriber, silence time.Duration, send func(*pb.ProcessEvent) error,
) error {
	defer p.unsubscribe(s)
	if err := send(startEvent(p.Pid)); err != nil {
		return err
	}
	ticker := time.NewTicker(silence)
	defer ticker.Stop()
	for {
		var event *pb.ProcessEvent
		select {
		case event = <-s.events:
			ticker.Reset(silence)
		case <-ticker.C:
			event = keepAliveEvent()
		case <-p.ended:
			return p.finish(s, send)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := send(event); err != nil {
			return err
		}
	}
}

// finish sends what is still queued, and the end; all output was queued before the process counted as ended.
func (p *Process) finish(s *subscriber, send func(*pb.ProcessEvent) error) error {
	for {
		select {
		case event := <-s.events:
			if err := send(event); err != nil {
				return err
			}
		default:
			return send(p.end)
		}
	}
}
