package server

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aenv.dev/agent/internal/auth"
)

func TestDownload(t *testing.T) {
	s := start(t)
	const content = "0123456789"
	if err := os.WriteFile(filepath.Join(s.home, "f"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name, path, accept, ranges string
		code                       int
		body, encoding             string
	}{
		{"whole", "f", "", "", 200, content, ""},
		{"by habit no gzip", "f", "gzip, deflate", "", 200, content, ""},
		{"asked for gzip", "f", "gzip", "", 200, content, "gzip"},
		{"a range", "f", "", "bytes=2-4", 206, "234", ""},
		{"the end", "f", "", "bytes=-3", 206, "789", ""},
		{"a range beyond", "f", "", "bytes=20-", 416, "", ""},
		{"a file of /proc", "/proc/self/comm", "", "", 200, read(t, "/proc/self/comm"), ""},
	}
	for _, c := range cases {
		header := http.Header{}
		for name, value := range map[string]string{"Accept-Encoding": c.accept, "Range": c.ranges} {
			if value != "" {
				header.Set(name, value)
			}
		}
		response := s.response(t, http.MethodGet, fileURL(c.path), nil, header)
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if response.Header.Get("Content-Encoding") == "gzip" {
			unzipped, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(unzipped); err != nil {
				t.Fatal(err)
			}
		}
		if response.StatusCode != c.code || response.Header.Get("Content-Encoding") != c.encoding ||
			c.code < 400 && string(body) != c.body {
			t.Errorf("%s: %d %q %q", c.name, response.StatusCode, response.Header.Get("Content-Encoding"), body)
		}
	}
}

func TestDownloadRefuses(t *testing.T) {
	s := start(t)
	for path, want := range map[string]int{"nope": 404, "/etc": 400, "/dev/zero": 400, "/etc/passwd/x": 400, "a\x00": 400} {
		code, answer := s.call(t, http.MethodGet, fileURL(path), "", nil)
		var failure struct {
			Code    int
			Message string
		}
		if err := json.Unmarshal([]byte(answer), &failure); err != nil || code != want || failure.Code != want || failure.Message == "" {
			t.Errorf("%q: %d %s, want %d", path, code, answer, want)
		}
	}
}

func TestSignedURLs(t *testing.T) {
	s := start(t)
	signed := func(operation auth.Operation) string {
		return s.url + fileURL("signed.txt", "signature", auth.Sign("signed.txt", operation, "", token, ""))
	}
	response, err := http.Post(signed(auth.Write), octets, strings.NewReader("content"))
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("signed upload: %v, %v", response, err)
	}
	response, err = http.Get(signed(auth.Read))
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("signed download: %v, %v", response, err)
	}
	response, err = http.Get(signed(auth.Write))
	if err != nil || response.StatusCode != http.StatusUnauthorized {
		t.Errorf("download signed for upload: %v, %v", response, err)
	}
}
