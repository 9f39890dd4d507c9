package filesystem

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"aenv.dev/agent/internal/users"

	pb "aenv.dev/agent/internal/gen/filesystem"
)

// script is a notifier that tells a prepared story, one batch per take.
type script struct {
	batches [][]change
	watched []string
}

func (s *script) add(dir string) error { s.watched = append(s.watched, dir); return nil }

func (s *script) forget(dir string) {
	s.watched = slices.DeleteFunc(s.watched, func(watched string) bool { return watched == dir })
}

func (s *script) take() ([]change, error) {
	if len(s.batches) == 0 {
		return nil, nil
	}
	batch := s.batches[0]
	s.batches = s.batches[1:]
	return batch, nil
}

func (s *script) wait(context.Context) error { return nil }

func (s *script) close() {}

func TestAnEntryFoundInANewDirectoryIsToldOnce(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "new", "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	const create, remove = pb.EventType_EVENT_TYPE_CREATE, pb.EventType_EVENT_TYPE_REMOVE
	created := func(dir, name string) change {
		return change{dir: filepath.Join(root, dir), name: name, kind: create, isDir: true}
	}
	story := &script{batches: [][]change{
		{created("", "new")},      // listing it finds "inner" …
		{created("new", "inner")}, // … of which the system tells too
		nil,                       // all was taken: from here on
		{{dir: filepath.Join(root, "new"), name: "inner", kind: remove, isDir: true}},
		{created("new", "inner")}, // a second "inner" is another one
	}}
	w := &watch{
		names: users.NewSingle(root), path: root, root: root, recursive: true, notifier: story, found: map[string]struct{}{},
	}
	var got []string
	for len(story.batches) > 0 {
		events, err := w.collect()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			got = append(got, e.GetType().String()+" "+e.GetName())
		}
	}
	want := []string{
		"EVENT_TYPE_CREATE new", "EVENT_TYPE_CREATE new/inner", "EVENT_TYPE_REMOVE new/inner", "EVENT_TYPE_CREATE new/inner",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	if !slices.Contains(story.watched, filepath.Join(root, "new", "inner")) {
		t.Errorf("watched %v", story.watched)
	}
}
