package server

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"aenv.dev/agent/internal/logs"

	fspb "aenv.dev/agent/internal/gen/filesystem"
)

func TestRoutesAndTheirCredentials(t *testing.T) {
	s := start(t)
	const none, access, host = "", "X-Access-Token", "X-Aenv-Host-Secret"
	cases := []struct {
		method, path, header, value string
		want                        int
	}{
		{"GET", "/health", access, "wrong", 204},
		{"GET", "/metrics", access, token, 200},
		{"GET", "/metrics", access, "wrong", 401},
		{"GET", "/envs", access, token, 200},
		{"GET", "/envs", access, "wrong", 401},
		{"GET", "/files", access, "wrong", 401},
		{"POST", "/files", access, "wrong", 401},
		{"POST", "/files/compose", access, "wrong", 401},
		{"POST", "/process.Process/List", access, "wrong", 401},
		{"POST", "/filesystem.Filesystem/Stat", access, "wrong", 401},
		{"POST", "/init", access, token, 404},
		{"POST", "/init", host, "wrong", 404},
		{"GET", "/aenv/health", access, token, 404},
		{"GET", "/aenv/health", host, secret, 200},
		{"GET", "/aenv/logs", host, secret, 200},
		{"GET", "/aenv/logs?after=x", host, secret, 400},
		{"GET", "/aenv/logs?wait=NaN", host, secret, 400},
		{"POST", "/aenv/sync", host, secret, 204},
		{"POST", "/freeze", access, token, 404},
		{"GET", "/nothing", access, token, 404},
	}
	for _, c := range cases {
		header := http.Header{}
		if c.header != none {
			header.Set(c.header, c.value)
		}
		if code, answer := s.call(t, c.method, c.path, "", header); code != c.want {
			t.Errorf("%s %s with %s %q: %d %s, want %d", c.method, c.path, c.header, c.value, code, answer, c.want)
		}
	}
}

func TestInit(t *testing.T) {
	s := start(t)
	for body, want := range map[string]int{
		`{`:                              400,
		`{"accessToken":1}`:              400,
		`{"timestamp":"yesterday"}`:      400,
		`{"envVars":{"A=B":"c"}}`:        400,
		`{"defaultWorkdir":"relative"}`:  400,
		`{"dnsServers":["example.com"]}`: 400,
		`{"nextVerifier":"short"}`:       400,
		`{"unknown":1}`:                  204,
		`{"timestamp":"2026-01-02T03:04:05Z","defaultWorkdir":"/etc"}`: 204,
	} {
		if code, answer := s.host(t, http.MethodPost, "/init", body); code != want {
			t.Errorf("%s: %d %s, want %d", body, code, answer, want)
		}
	}
	// What was absent is unchanged, and what a refused request also asked for was not done.
	if _, answer := s.call(t, http.MethodGet, "/envs", "", nil); answer != `{"FOO":"bar"}` {
		t.Errorf("envs %s", answer)
	}
	if r := launch(t, s.processes(), bash("pwd"), 0).rest(); r.stdout.String() != "/etc\n" {
		t.Errorf("the default working directory is %q", r.stdout.String())
	}
	s.init(t, `{"envVars":{"NEW":"1"}}`)
	if _, answer := s.call(t, http.MethodGet, "/envs", "", nil); answer != `{"NEW":"1"}` {
		t.Errorf("envs %s", answer)
	}
}

func TestTheHostsSecretCanBeReplaced(t *testing.T) {
	s := start(t)
	sum := sha256.Sum256([]byte("second"))
	s.init(t, `{"nextVerifier":"`+hex.EncodeToString(sum[:])+`"}`)
	if code, _ := s.host(t, http.MethodPost, "/init", `{}`); code != http.StatusNotFound {
		t.Errorf("the old secret: %d", code)
	}
	header := http.Header{"X-Aenv-Host-Secret": {"second"}}
	if code, _ := s.call(t, http.MethodPost, "/init", `{}`, header); code != http.StatusNoContent {
		t.Errorf("the new secret: %d", code)
	}
}

func TestLogs(t *testing.T) {
	s := start(t)
	page := func(query string) (page logs.Page) {
		code, answer := s.host(t, http.MethodGet, "/aenv/logs?"+query, "")
		if err := json.Unmarshal([]byte(answer), &page); err != nil || code != http.StatusOK {
			t.Fatalf("logs: %d %s", code, answer)
		}
		return page
	}
	if empty := page(""); len(empty.Entries) != 0 || empty.Next != 0 {
		t.Errorf("at first: %+v", empty)
	}
	waiting := make(chan logs.Page)
	go func() { waiting <- page("wait=20") }()
	launch(t, s.processes(), bash("echo out; echo err >&2; printf unfinished"), 0).rest()
	if first := <-waiting; len(first.Entries) == 0 {
		t.Errorf("the long poll brought %+v", first)
	}
	var all logs.Page
	eventually(t, "three lines are there", func() bool { all = page("after=0&limit=10"); return len(all.Entries) == 3 })
	seen := map[string]logs.Stream{}
	for _, e := range all.Entries {
		seen[e.Message] = e.Stream
		if e.Level != "info" || e.Fields["cmd"] != "/bin/bash" || e.Fields["pid"] == "" || e.Timestamp < 1e9 {
			t.Errorf("entry %+v", e)
		}
	}
	if seen["out"] != logs.Stdout || seen["err"] != logs.Stderr || seen["unfinished"] != logs.Stdout {
		t.Errorf("lines %v", seen)
	}
	data := connect.NewRequest(bash("echo data; echo complaint >&2"))
	data.Header().Set("X-Aenv-Stdout", "unlogged")
	stream, err := s.processes().Start(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
	}
	eventually(t, "stderr is there", func() bool { return len(page("after=3").Entries) > 0 })
	if more := page("after=3"); len(more.Entries) != 1 || more.Entries[0].Message != "complaint" {
		t.Errorf("of what wants no log: %+v", more)
	}
	if after := page("after=2&limit=1"); len(after.Entries) != 1 || after.Next != 3 {
		t.Errorf("after 2: %+v", after)
	}
}

func TestMetricsAndHealth(t *testing.T) {
	s := start(t)
	var metrics map[string]float64
	_, answer := s.call(t, http.MethodGet, "/metrics", "", nil)
	if err := json.Unmarshal([]byte(answer), &metrics); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ts", "cpu_count", "mem_total", "mem_used", "disk_total", "disk_used"} {
		if metrics[name] <= 0 {
			t.Errorf("%s = %v in %s", name, metrics[name], answer)
		}
	}
	stream := launch(t, s.processes(), bash("sleep 1000"), 0)
	stream.pid(t)
	_, answer = s.host(t, http.MethodGet, "/aenv/health", "")
	if !strings.Contains(answer, `"initialised":true`) || !strings.Contains(answer, `"processes":1`) ||
		!strings.Contains(answer, `"version":"test"`) {
		t.Errorf("health %s", answer)
	}
}

func TestHostileRequestsLeaveTheAgentWell(t *testing.T) {
	s := start(t)
	stream, unary := "application/connect+json", "application/json"
	for name, c := range map[string]struct{ path, contentType, body string }{
		"no frame":             {"/process.Process/Start", stream, ""},
		"a frame of 4 GB":      {"/process.Process/Start", stream, "\x00\xff\xff\xff\xffx"},
		"a compressed frame":   {"/process.Process/Start", stream, "\x01\x00\x00\x00\x02{}"},
		"bad JSON in a frame":  {"/process.Process/Start", stream, "\x00\x00\x00\x00\x01{"},
		"bad JSON":             {"/process.Process/List", unary, "{"},
		"wrong types":          {"/process.Process/SendSignal", unary, `{"process":{"pid":"x"}}`},
		"no selector":          {"/process.Process/SendSignal", unary, `{}`},
		"an unknown method":    {"/process.Process/Nothing", unary, `{}`},
		"an unknown codec":     {"/process.Process/List", "application/xml", `{}`},
		"deep nesting":         {"/process.Process/List", unary, strings.Repeat(`{"x":`, 100_000)},
		"a huge unary message": {"/filesystem.Filesystem/Stat", unary, `{"path":"` + strings.Repeat("x", maxMessage) + `"}`},
	} {
		code, answer := s.call(t, http.MethodPost, c.path, c.body, http.Header{"Content-Type": {c.contentType}})
		if code == http.StatusOK && !strings.Contains(answer, `"error"`) {
			t.Errorf("%s: %d %.200q", name, code, answer)
		}
	}
	header := connect.NewRequest(&fspb.StatRequest{Path: "."})
	header.Header().Set("Authorization", "Basic !!!")
	if _, err := s.filesystem().Stat(t.Context(), header); err != nil {
		t.Errorf("a malformed Authorization header means the default user, got %v", err)
	}
	if r := launch(t, s.processes(), bash("echo fine"), 0).rest(); r.stdout.String() != "fine\n" {
		t.Errorf("afterwards: %q, %v", r.stdout.String(), r.err)
	}
}

func TestTheEndOfTheAgentIsTheEndOfItsProcesses(t *testing.T) {
	var pid int
	t.Run("agent", func(t *testing.T) {
		s := start(t)
		pid = int(launch(t, s.processes(), bash(`trap "" TERM; setsid sleep 1000 & wait`), 0).pid(t))
	})
	if alive(pid) {
		t.Errorf("process %d has outlived the agent", pid)
	}
}
