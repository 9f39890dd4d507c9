package process

import (
	"os"
	"sync"
	"testing"
)

// The process has exited while a follower was slow: its time for late output is over, but what is in the pipe was written
// before, and something else keeps the pipe open.
func TestWhatAnExitedProcessHasWrittenIsPublishedBeforeItsEnd(t *testing.T) {
	ours, theirs, err := outputPipe("output")
	if err != nil {
		t.Fatal(err)
	}
	writer := os.NewFile(theirs, "writer")
	defer writer.Close()
	const size = 2 * pipeChunk
	if _, err := writer.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	u := &pump{
		kind: stdoutOutput, file: ours, size: pipeChunk,
		buffers: &sync.Pool{New: func() any { return new([pipeChunk]byte) }},
	}
	reached, release, done := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	published, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		u.run(func(_ outputKind, chunk []byte) {
			if published == 0 {
				close(reached)
				<-release
			}
			published += len(chunk)
		}, func() bool { done <- published; return true })
	}()
	<-reached
	u.expire()
	close(release)
	if got := <-done; got != size {
		t.Errorf("%d bytes were published before the end, want %d", got, size)
	}
	// What comes later is nobody's, but it must go on being taken.
	if _, err := writer.Write(make([]byte, 10*size)); err != nil {
		t.Errorf("writing after the end: %v", err)
	}
	_ = writer.Close()
	<-ended
	if published != size {
		t.Errorf("%d bytes were published in all, want %d", published, size)
	}
}
