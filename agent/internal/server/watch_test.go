package server

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	pb "aenv.dev/agent/internal/gen/filesystem"
	"aenv.dev/agent/internal/gen/filesystem/filesystemconnect"
)

func names(events []*pb.FilesystemEvent) []string {
	var all []string
	for _, e := range events {
		all = append(all, strings.ToLower(strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_"))+" "+e.GetName())
	}
	return all
}

func poll(t *testing.T, client filesystemconnect.FilesystemClient, id string) []*pb.FilesystemEvent {
	t.Helper()
	answer, err := client.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
	if err != nil {
		t.Fatal(err)
	}
	return answer.Msg.GetEvents()
}

func TestEveryEventIsThereByTheNextPoll(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		client := s.filesystem(codec)
		answer, err := client.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: "."}))
		if err != nil {
			t.Fatal(err)
		}
		id := answer.Msg.GetWatcherId()
		for range 20 {
			s.call(t, http.MethodPost, fileURL("new.txt"), "content", http.Header{"Content-Type": {octets}})
			if got := names(poll(t, client, id)); !slices.Equal(got, []string{"create new.txt", "chmod new.txt", "write new.txt"}) {
				t.Fatalf("after an upload: %v", got)
			}
			rename := &pb.MoveRequest{Source: "new.txt", Destination: "old.txt"}
			if _, err := client.Move(t.Context(), connect.NewRequest(rename)); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Remove(t.Context(), connect.NewRequest(&pb.RemoveRequest{Path: "old.txt"})); err != nil {
				t.Fatal(err)
			}
			if got := names(poll(t, client, id)); !slices.Equal(got, []string{"rename new.txt", "create old.txt", "remove old.txt"}) {
				t.Fatalf("after a rename and a removal: %v", got)
			}
		}
		if _, err := client.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: id})); err != nil {
			t.Error(err)
		}
		_, err = client.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
		wantCode(t, "a removed watcher", err, connect.CodeNotFound)
	})
}

func TestRecursiveWatchersFollowTheTree(t *testing.T) {
	s := start(t)
	client := s.filesystem()
	s.tree(t, "w/old/")
	answer, err := client.CreateWatcher(t.Context(), connect.NewRequest(
		&pb.CreateWatcherRequest{Path: "w", Recursive: true, IncludeEntry: true}))
	if err != nil {
		t.Fatal(err)
	}
	id := answer.Msg.GetWatcherId()
	s.tree(t, "w/old/x", "w/a/b/c/")
	events := poll(t, client, id)
	want := []string{"create a", "create a/b", "create a/b/c", "create old/x", "write old/x"}
	got := names(events)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	for _, e := range events {
		if e.GetEntry().GetPath() != filepath.Join(s.home, "w", e.GetName()) {
			t.Errorf("the entry of %s is %v", e.GetName(), e.GetEntry())
		}
	}
	s.tree(t, "w/a/b/c/late")
	if got := names(poll(t, client, id)); !slices.Equal(got, []string{"create a/b/c/late", "write a/b/c/late"}) {
		t.Errorf("in a new directory: %v", got)
	}
	if err := os.Rename(filepath.Join(s.home, "w/a"), filepath.Join(s.home, "w/moved")); err != nil {
		t.Fatal(err)
	}
	if got := names(poll(t, client, id)); !slices.Equal(got, []string{"rename a", "create moved"}) {
		t.Errorf("after moving a directory: %v", got)
	}
	s.tree(t, "w/moved/b/c/later")
	if got := names(poll(t, client, id)); !slices.Equal(got, []string{"create moved/b/c/later", "write moved/b/c/later"}) {
		t.Errorf("in a moved directory: %v", got)
	}
}

func TestWatchDir(t *testing.T) {
	codecs(t, func(t *testing.T, s *sandbox, codec connect.ClientOption) {
		request := connect.NewRequest(&pb.WatchDirRequest{Path: "."})
		request.Header().Set("Connect-Timeout-Ms", "1500")
		request.Header().Set("Keepalive-Ping-Interval", "1")
		stream, err := s.filesystem(codec).WatchDir(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if !stream.Receive() || stream.Msg().GetStart() == nil {
			t.Fatalf("the first event is %v, %v", stream.Msg(), stream.Err())
		}
		s.tree(t, "new")
		var got []*pb.FilesystemEvent
		keepalives := 0
		for stream.Receive() {
			if event := stream.Msg().GetFilesystem(); event != nil {
				got = append(got, event)
			} else if stream.Msg().GetKeepalive() != nil {
				keepalives++
			}
		}
		if !slices.Equal(names(got), []string{"create new", "write new"}) || keepalives != 1 {
			t.Errorf("events %v, %d keepalives", names(got), keepalives)
		}
		wantCode(t, "the end of the watch", stream.Err(), connect.CodeDeadlineExceeded)
	})
}

func TestWatchersRefuse(t *testing.T) {
	s := start(t)
	s.tree(t, "file")
	for path, code := range map[string]connect.Code{"file": connect.CodeInvalidArgument, "nope": connect.CodeNotFound} {
		_, err := s.filesystem().CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{Path: path}))
		wantCode(t, path, err, code)
		stream, err := s.filesystem().WatchDir(t.Context(), connect.NewRequest(&pb.WatchDirRequest{Path: path}))
		if err != nil {
			t.Fatal(err)
		}
		if stream.Receive() {
			t.Errorf("watching %s: %v", path, stream.Msg())
		}
		wantCode(t, path, stream.Err(), code)
	}
}
