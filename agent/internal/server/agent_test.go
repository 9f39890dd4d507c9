package server

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"aenv.dev/agent/internal/auth"
	"aenv.dev/agent/internal/gen/filesystem/filesystemconnect"
	"aenv.dev/agent/internal/gen/process/processconnect"
	"aenv.dev/agent/internal/users"
)

const (
	token  = "access-token"
	secret = "host-secret"
)

// sandbox is an agent in single-user mode, in this process, behind TCP. Only one at a time: it collects every child.
type sandbox struct {
	url, home string
	client    *http.Client
}

func start(t *testing.T) *sandbox {
	t.Helper()
	home := t.TempDir()
	return serve(t, home, Config{Users: users.NewSingle(home), Disk: home, Sync: func() {}})
}

func serve(t *testing.T, home string, config Config) *sandbox {
	t.Helper()
	sum := sha256.Sum256([]byte(secret))
	verifier, err := auth.ParseVerifier(hex.EncodeToString(sum[:]))
	if err != nil {
		t.Fatal(err)
	}
	config.Version, config.Verifier = "test", verifier
	agent, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = agent.Serve(ctx, listener) }()
	t.Cleanup(func() { stop(); <-done })
	s := &sandbox{
		url: "http://" + listener.Addr().String(), home: home,
		client: &http.Client{Transport: &authorized{&http.Transport{DisableCompression: true}}},
	}
	s.init(t, `{"sandboxId":"sbx1","templateId":"base","accessToken":"`+token+`","envVars":{"FOO":"bar"}}`)
	return s
}

// authorized adds the access token to requests that bring no other credential.
type authorized struct{ *http.Transport }

func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("X-Aenv-Host-Secret") == "" && r.Header.Get("X-Access-Token") == "" {
		r.Header.Set("X-Access-Token", token)
	}
	return a.Transport.RoundTrip(r)
}

func (s *sandbox) init(t *testing.T, body string) {
	t.Helper()
	if code, answer := s.host(t, http.MethodPost, "/init", body); code != http.StatusNoContent {
		t.Fatalf("init: %d %s", code, answer)
	}
}

// host calls an endpoint with the host's secret.
func (s *sandbox) host(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	return s.call(t, method, path, body, http.Header{"X-Aenv-Host-Secret": {secret}})
}

func (s *sandbox) call(t *testing.T, method, path, body string, header http.Header) (int, string) {
	t.Helper()
	response := s.response(t, method, path, strings.NewReader(body), header)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

func (s *sandbox) response(t *testing.T, method, path string, body io.Reader, header http.Header) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, s.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	response, err := s.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func (s *sandbox) processes(options ...connect.ClientOption) processconnect.ProcessClient {
	return processconnect.NewProcessClient(s.client, s.url, options...)
}

func (s *sandbox) filesystem(options ...connect.ClientOption) filesystemconnect.FilesystemClient {
	return filesystemconnect.NewFilesystemClient(s.client, s.url, options...)
}

// codecs runs a test with both of Connect's codecs.
func codecs(t *testing.T, test func(t *testing.T, s *sandbox, codec connect.ClientOption)) {
	t.Helper()
	t.Run("json", func(t *testing.T) { test(t, start(t), connect.WithProtoJSON()) })
	t.Run("protobuf", func(t *testing.T) { test(t, start(t), connect.WithClientOptions()) })
}

func as(user string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":")) }

func wantCode(t *testing.T, what string, err error, code connect.Code) {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil {
		t.Errorf("%s: %v, want %v", what, err, code)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
