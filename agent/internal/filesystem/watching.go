package filesystem

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"aenv.dev/agent/internal/wire"

	pb "aenv.dev/agent/internal/gen/filesystem"
)

// watchRequest is what WatchDir and CreateWatcher are asked for.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

func (s *Service) watch(header http.Header, request watchRequest) (*watch, error) {
	_, path, err := s.locate(header, request.GetPath())
	if err != nil {
		return nil, err
	}
	root, err := directory(path)
	if err != nil {
		return nil, err
	}
	if !request.GetAllowNetworkMounts() && onNetwork(root) {
		return nil, failure(connect.CodeInvalidArgument,
			"'%s' is on a network mount, whose events may be missing: set allow_network_mounts to watch it anyway", path)
	}
	started, err := newWatch(&watch{
		names: s.Identity.Users, path: path, root: root,
		recursive: request.GetRecursive(), includeEntry: request.GetIncludeEntry(),
	})
	if err != nil {
		return nil, explain(err)
	}
	return started, nil
}

func (s *Service) WatchDir(
	ctx context.Context, request *connect.Request[pb.WatchDirRequest], stream *connect.ServerStream[pb.WatchDirResponse],
) error {
	w, err := s.watch(request.Header(), request.Msg)
	if err != nil {
		return err
	}
	defer w.close()
	start := &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}
	if err := stream.Send(&pb.WatchDirResponse{Event: start}); err != nil {
		return err
	}
	silence := wire.KeepAlive(request.Header())
	for {
		events, err := nextWithin(ctx, w, silence)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			alive := &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}
			if err := stream.Send(&pb.WatchDirResponse{Event: alive}); err != nil {
				return err
			}
		}
		for _, event := range events {
			happened := &pb.WatchDirResponse_Filesystem{Filesystem: event}
			if err := stream.Send(&pb.WatchDirResponse{Event: happened}); err != nil {
				return err
			}
		}
	}
}

// nextWithin returns no events when nothing happens for so long.
func nextWithin(ctx context.Context, w *watch, silence time.Duration) ([]*pb.FilesystemEvent, error) {
	quiet, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	events, err := w.next(quiet)
	if err != nil && ctx.Err() == nil && quiet.Err() != nil {
		return nil, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return events, err
}

func (s *Service) CreateWatcher(
	_ context.Context, request *connect.Request[pb.CreateWatcherRequest],
) (*connect.Response[pb.CreateWatcherResponse], error) {
	w, err := s.watch(request.Header(), request.Msg)
	if err != nil {
		return nil, err
	}
	id, err := s.Watchers.add(w)
	if err != nil {
		w.close()
		return nil, err
	}
	return connect.NewResponse(&pb.CreateWatcherResponse{WatcherId: id}), nil
}

func (s *Service) GetWatcherEvents(
	_ context.Context, request *connect.Request[pb.GetWatcherEventsRequest],
) (*connect.Response[pb.GetWatcherEventsResponse], error) {
	w, err := s.Watchers.get(request.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	events, err := w.poll()
	if err != nil {
		return nil, explain(err)
	}
	return connect.NewResponse(&pb.GetWatcherEventsResponse{Events: events}), nil
}

func (s *Service) RemoveWatcher(
	_ context.Context, request *connect.Request[pb.RemoveWatcherRequest],
) (*connect.Response[pb.RemoveWatcherResponse], error) {
	return connect.NewResponse(&pb.RemoveWatcherResponse{}), s.Watchers.remove(request.Msg.GetWatcherId())
}
