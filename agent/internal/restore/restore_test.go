package restore

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"aenv.dev/agent/internal/logs"

	pb "aenv.dev/agent/internal/gen/process"
)

var fork = Event{Mode: Fork, SandboxID: "child", LifeID: "life", Away: 1.5}

// stage is a restorer over folders of its own. Its runner notes the commands and does what the test says.
type stage struct {
	*Restorer
	etc, run string
	log      *logs.Ring
	does     func(context.Context, *pb.ProcessConfig) error

	mu  sync.Mutex
	ran []*pb.ProcessConfig
}

func newStage(t *testing.T) *stage {
	t.Helper()
	run, err := os.MkdirTemp("", "r") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{
		etc: t.TempDir(), run: run, log: logs.NewRing(time.Now),
		does: func(context.Context, *pb.ProcessConfig) error { return nil },
	}
	s.Restorer = New(s.etc, run, s.log, func(ctx context.Context, c *pb.ProcessConfig) error {
		s.mu.Lock()
		s.ran = append(s.ran, c)
		s.mu.Unlock()
		return s.does(ctx, c)
	})
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); _ = os.RemoveAll(run) })
	s.Start(ctx)
	return s
}

func (s *stage) put(t *testing.T, name, content string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(s.etc, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func (s *stage) commands() (commands []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.ran {
		commands = append(commands, filepath.Base(c.GetCmd()))
	}
	return commands
}

// process registers with the agent and hands over what it is told; it answers if answer is not "".
func (s *stage) process(t *testing.T, answer string) (told chan string, connection net.Conn) {
	t.Helper()
	connection, err := net.Dial("unix", filepath.Join(s.run, "aenv", socketName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	told = make(chan string, 100)
	go func() {
		lines := bufio.NewScanner(connection)
		for lines.Scan() {
			told <- lines.Text()
			if answer != "" {
				_, _ = fmt.Fprintln(connection, answer)
			}
		}
		close(told)
	}()
	return told, connection
}

func (s *stage) registered() int {
	s.notices.mu.Lock()
	defer s.notices.mu.Unlock()
	return len(s.notices.members)
}

func (s *stage) await(t *testing.T, members int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); s.registered() != members; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d processes are registered, not %d", s.registered(), members)
		}
	}
}

func TestRegisteredProcessesAreToldBeforeItReturns(t *testing.T) {
	s := newStage(t)
	one, _ := s.process(t, "done")
	two, _ := s.process(t, "done")
	s.await(t, 2)
	for count := 1; count <= 2; count++ {
		if failures := s.Restored(t.Context(), fork); len(failures) > 0 {
			t.Errorf("failures %q", failures)
		}
		for _, told := range []chan string{one, two} {
			var event Event
			if err := json.Unmarshal([]byte(<-told), &event); err != nil || event != fork {
				t.Errorf("told %+v, %v", event, err)
			}
		}
	}
}

func TestWhoComplainsOrIsLateIsNamed(t *testing.T) {
	s := newStage(t)
	s.process(t, "no seed")
	s.process(t, "")
	gone, connection := s.process(t, "done")
	s.await(t, 3)
	_ = connection.Close()
	<-gone
	started := time.Now()
	failures := s.Restored(t.Context(), fork)
	if len(failures) != 2 || !strings.Contains(strings.Join(failures, "\n"), ": no seed") ||
		!strings.Contains(strings.Join(failures, "\n"), "did not answer in time") {
		t.Errorf("failures %q", failures)
	}
	if took := time.Since(started); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	page := s.log.Read(t.Context(), 0, 10)
	if len(page.Entries) != 2 || page.Entries[0].Level != "error" || page.Entries[0].Message != failures[0] {
		t.Errorf("the log: %+v", page)
	}
}

func TestALateAnswerIsNotTheNextOnes(t *testing.T) {
	s := newStage(t)
	told, connection := s.process(t, "")
	s.await(t, 1)
	if failures := s.Restored(t.Context(), fork); len(failures) != 1 {
		t.Fatalf("failures %q", failures)
	}
	<-told
	go func() { // two lines, two answers: the second one counts
		<-told
		_, _ = fmt.Fprint(connection, "late\ndone\n")
	}()
	if failures := s.Restored(t.Context(), fork); len(failures) != 0 {
		t.Errorf("failures %q", failures)
	}
}

func TestHostileProcessesAreLetGo(t *testing.T) {
	s := newStage(t)
	talker, connection := s.process(t, "")
	s.await(t, 1)
	_, _ = fmt.Fprint(connection, "done\n")
	for range talker {
		t.Error("who talks unasked was told something")
	}
	s.await(t, 0)
	flooder, connection := s.process(t, "")
	s.await(t, 1)
	_, _ = connection.Write([]byte(strings.Repeat("x", 10*maxAnswer)))
	for range flooder {
		t.Error("who sends endless lines was told something")
	}
	s.await(t, 0)
	s.process(t, "")
	s.await(t, 1)
	s.notices.patience = 10 * time.Millisecond
	for range maxOwed + 1 {
		s.notices.tell([]byte("{}\n"))
	}
	s.await(t, 0)
}

func TestHooksRunByNameWithTheEvent(t *testing.T) {
	s := newStage(t)
	s.put(t, "aenv/restore.d/20-second", "", 0o755)
	s.put(t, "aenv/restore.d/10-first", "", 0o700)
	s.put(t, "aenv/restore.d/30-fails", "", 0o755)
	s.put(t, "aenv/restore.d/README", "", 0o644)
	s.put(t, "aenv/restore.d/.hidden", "", 0o755)
	s.put(t, "aenv/restore.d/folder/inner", "", 0o755)
	s.put(t, "aenv/restore.d/40-everybodys", "", 0o777)
	s.does = func(_ context.Context, c *pb.ProcessConfig) error {
		if strings.HasSuffix(c.GetCmd(), "fails") {
			return errors.New("exit status 3")
		}
		return nil
	}
	failures := s.Restored(t.Context(), fork)
	want := []string{"10-first", "20-second", "30-fails"}
	if os.Getuid() != 0 {
		want = nil // nothing here belongs to root
	}
	if got := s.commands(); !slices.Equal(got, want) {
		t.Fatalf("ran %q", got)
	}
	if want == nil {
		return
	}
	if len(failures) != 2 || !strings.HasSuffix(failures[0], "30-fails: exit status 3") ||
		!strings.Contains(failures[1], "40-everybodys: not run: it must belong to root") {
		t.Errorf("failures %q", failures)
	}
	envs := s.ran[0].GetEnvs()
	if envs["AENV_RESTORE"] != "fork" || envs["AENV_SANDBOX_ID"] != "child" || envs["AENV_LIFE_ID"] != "life" ||
		envs["AENV_AWAY"] != "1.500" {
		t.Errorf("the environment %q", envs)
	}
}

func TestAFolderOfHooksThatOthersMayWriteIsNotTrusted(t *testing.T) {
	s := newStage(t)
	s.put(t, "aenv/restore.d/hook", "", 0o755)
	if err := os.Chmod(filepath.Join(s.etc, hookFolder), 0o777); err != nil {
		t.Fatal(err)
	}
	failures := s.Restored(t.Context(), fork)
	if len(failures) != 1 || !strings.Contains(failures[0], "restore.d: not run") || len(s.commands()) > 0 {
		t.Errorf("failures %q, ran %q", failures, s.commands())
	}
}

func TestSSHKeysAreNewInAForkAndKeptInAResume(t *testing.T) {
	s := newStage(t)
	s.put(t, "ssh/ssh_host_ed25519_key", "old", 0o600)
	s.put(t, "ssh/ssh_host_ed25519_key.pub", "old", 0o644)
	s.put(t, "ssh/sshd_config", "mine", 0o644)
	resume := fork
	resume.Mode = Resume
	s.Restored(t.Context(), resume)
	if got := s.commands(); len(got) != 0 || len(s.files(t)) != 3 {
		t.Errorf("after a resume: ran %q, files %q", got, s.files(t))
	}
	s.does = func(context.Context, *pb.ProcessConfig) error { return errors.New("not found") }
	failures := s.Restored(t.Context(), fork)
	if got := s.files(t); !slices.Equal(got, []string{"sshd_config"}) {
		t.Errorf("files %q", got)
	}
	if len(failures) != 1 || !strings.Contains(failures[0], "there are no new ones: ssh-keygen: not found") {
		t.Errorf("failures %q", failures)
	}
	if s.Restored(t.Context(), fork); len(s.commands()) != 1 {
		t.Errorf("without keys: ran %q", s.commands())
	}
}

func (s *stage) files(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.etc, "ssh"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
