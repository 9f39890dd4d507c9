package server

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aenv.dev/agent/internal/host"
	"aenv.dev/agent/internal/logs"
	"aenv.dev/agent/internal/users"
)

// machine starts an agent that owns its machine's /etc.
func machine(t *testing.T) (s *sandbox, etc string) {
	t.Helper()
	etc, home := t.TempDir(), t.TempDir()
	return serve(t, home, Config{
		Users: users.NewSingle(home), Disk: "/", Sync: func() {}, Run: t.TempDir(), Path: os.Getenv("PATH"),
		System: &host.System{Etc: etc, DBus: t.TempDir(), SetHostname: func(string) error { return nil }},
	}), etc
}

func TestAForkForgetsWhatWasNotItsOwn(t *testing.T) {
	s, etc := machine(t)
	first := read(t, filepath.Join(etc, "machine-id"))
	s.init(t, `{"envVars":{"KEY":"secret","TOKEN":"secret","PLAIN":"1"},"secretEnv":["KEY","TOKEN","ABSENT"]}`)
	launch(t, s.processes(), bash("echo the parent speaks"), 0).rest()
	s.init(t, `{"restored":true,"lifeId":"one","sandboxId":"child"}`)
	if _, envs := s.call(t, http.MethodGet, "/envs", "", nil); envs != `{"PLAIN":"1"}` {
		t.Errorf("the environment %s", envs)
	}
	if r := launch(t, s.processes(), bash(`echo "$E2B_SANDBOX_ID [$KEY]"`), 0).rest(); r.stdout.String() != "child []\n" {
		t.Errorf("a process sees %q", r.stdout.String())
	}
	_, log := s.host(t, http.MethodGet, "/aenv/logs", "")
	if strings.Contains(log, "the parent speaks") || !strings.Contains(log, `"seq":1,`) {
		t.Errorf("the log %s", log)
	}
	second := read(t, filepath.Join(etc, "machine-id"))
	if len(first) != 33 || len(second) != 33 || first == second {
		t.Errorf("machine ids %q and %q", first, second)
	}
}

func TestAForkIsGivenSecretsThatItsCallerAsksFor(t *testing.T) {
	s, _ := machine(t)
	s.init(t, `{"envVars":{"KEY":"old","PLAIN":"1"},"secretEnv":["KEY"]}`)
	s.init(t, `{"restored":true,"lifeId":"one","envVars":{"KEY":"new"},"secretEnv":["KEY"]}`)
	if _, envs := s.call(t, http.MethodGet, "/envs", "", nil); envs != `{"KEY":"new"}` {
		t.Errorf("the child's environment %s", envs)
	}
	s.init(t, `{"restored":true,"lifeId":"two"}`)
	if _, envs := s.call(t, http.MethodGet, "/envs", "", nil); envs != `{}` {
		t.Errorf("the grandchild's environment %s", envs)
	}
}

func TestAResumeKeepsEverything(t *testing.T) {
	s, etc := machine(t)
	before := read(t, filepath.Join(etc, "machine-id"))
	s.init(t, `{"envVars":{"KEY":"secret"},"secretEnv":["KEY"]}`)
	launch(t, s.processes(), bash("echo before"), 0).rest()
	s.init(t, `{"restored":true,"resumed":true,"lifeId":"one"}`)
	if _, envs := s.call(t, http.MethodGet, "/envs", "", nil); envs != `{"KEY":"secret"}` {
		t.Errorf("the environment %s", envs)
	}
	if _, log := s.host(t, http.MethodGet, "/aenv/logs", ""); !strings.Contains(log, "before") {
		t.Errorf("the log %s", log)
	}
	if after := read(t, filepath.Join(etc, "machine-id")); after != before {
		t.Errorf("machine ids %q and %q", before, after)
	}
}

func TestARestoreHappensOnceAndTellsWhatFailed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("hooks must belong to root")
	}
	s, etc := machine(t)
	hook(t, etc, "10-works", `echo "$AENV_RESTORE $AENV_SANDBOX_ID $FOO" >> `+s.home+`/ran; echo from the hook`)
	hook(t, etc, "20-fails", "exit 7")
	var answer struct{ Failures []string }
	for range 2 { // the answer to the first call was lost
		code, body := s.host(t, http.MethodPost, "/init", `{"restored":true,"lifeId":"one","sandboxId":"child"}`)
		if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
			t.Fatalf("init: %d %s", code, body)
		}
		if len(answer.Failures) != 1 || !strings.HasSuffix(answer.Failures[0], "20-fails: exit status 7") {
			t.Errorf("failures %q", answer.Failures)
		}
	}
	if ran := read(t, filepath.Join(s.home, "ran")); ran != "fork child bar\n" {
		t.Errorf("the hook left %q", ran)
	}
	var page logs.Page
	_, body := s.host(t, http.MethodGet, "/aenv/logs", "")
	if err := json.Unmarshal([]byte(body), &page); err != nil || len(page.Entries) != 2 {
		t.Fatalf("the log %s", body)
	}
	if page.Entries[0].Message != "from the hook" || page.Entries[1].Level != "error" {
		t.Errorf("the log %s", body)
	}
}

func TestAHookThatHangsIsKilledWithItsChildren(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("hooks must belong to root")
	}
	s, etc := machine(t)
	hook(t, etc, "hangs", "setsid sleep 1000 & echo $! > "+s.home+"/child; sleep 1000")
	code, body := s.host(t, http.MethodPost, "/init", `{"restored":true,"lifeId":"one"}`)
	if code != http.StatusOK || !strings.Contains(body, "killed or not run: all hooks together may take 6s") {
		t.Errorf("init: %d %s", code, body)
	}
	if _, log := s.host(t, http.MethodGet, "/aenv/health", ""); !strings.Contains(log, `"processes":0`) {
		t.Errorf("health %s", log)
	}
}

func TestABrokenMachineDoesNotFailARestore(t *testing.T) {
	s, etc := machine(t)
	if err := os.RemoveAll(etc); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(etc, nil, 0o644); err != nil { // nothing can be written below it
		t.Fatal(err)
	}
	const body = `"hosts":"127.0.0.1 localhost","accessToken":"next"`
	if code, answer := s.host(t, http.MethodPost, "/init", `{`+body+`}`); code != http.StatusInternalServerError {
		t.Errorf("a plain init: %d %s", code, answer)
	}
	code, answer := s.host(t, http.MethodPost, "/init", `{"restored":true,"lifeId":"one",`+body+`}`)
	if code != http.StatusOK || !strings.Contains(answer, "not a directory") {
		t.Errorf("after a restore: %d %s", code, answer)
	}
	header := http.Header{"X-Access-Token": {"next"}}
	if code, answer := s.call(t, http.MethodGet, "/envs", "", header); code != http.StatusOK {
		t.Errorf("the new token: %d %s", code, answer)
	}
}

func TestARestoreIsRefusedWithoutItsName(t *testing.T) {
	s, _ := machine(t)
	for _, body := range []string{
		`{"restored":true}`,
		`{"restored":true,"lifeId":"` + strings.Repeat("x", 129) + `"}`,
		`{"restored":true,"lifeId":"one","machineId":"short"}`,
	} {
		if code, answer := s.host(t, http.MethodPost, "/init", body); code != http.StatusBadRequest {
			t.Errorf("%.60s: %d %s", body, code, answer)
		}
	}
}

func hook(t *testing.T, etc, name, script string) {
	t.Helper()
	path := filepath.Join(etc, "aenv/restore.d", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}
