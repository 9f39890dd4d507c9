package server

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	fspb "aenv.dev/agent/internal/gen/filesystem"
)

const octets = "application/octet-stream"

func fileURL(path string, more ...string) string {
	query := url.Values{"path": {path}}
	for i := 0; i+1 < len(more); i += 2 {
		query.Set(more[i], more[i+1])
	}
	return "/files?" + query.Encode()
}

func zipped(t *testing.T, content string) string {
	t.Helper()
	var buffer bytes.Buffer
	w := gzip.NewWriter(&buffer)
	_, err := io.WriteString(w, content)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return buffer.String()
}

// form builds a multipart body; names and contents alternate.
func form(t *testing.T, field string, parts ...string) (string, string) {
	t.Helper()
	var buffer bytes.Buffer
	w := multipart.NewWriter(&buffer)
	for i := 0; i < len(parts); i += 2 {
		part, err := w.CreateFormFile(field, parts[i])
		if err == nil {
			_, err = io.WriteString(part, parts[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), buffer.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestUpload(t *testing.T) {
	s := start(t)
	oneType, one := form(t, "file", "ignored/name.txt", "one")
	manyType, many := form(t, "file", "m/a.txt", "A", filepath.Join(s.home, "m/b c.txt"), "B")
	cases := []struct {
		name, target, contentType, encoding, body string
		want                                      map[string]string
	}{
		{"octets", fileURL("o/x.bin"), octets, "", "data", map[string]string{"o/x.bin": "data"}},
		{"an empty file", fileURL("empty"), octets, "", "", map[string]string{"empty": ""}},
		{"octets, gzip", fileURL("z.bin"), octets, "gzip", zipped(t, "zipped"), map[string]string{"z.bin": "zipped"}},
		{"home", fileURL("~/t.txt"), octets, "", "t", map[string]string{"t.txt": "t"}},
		{"a form to a path", fileURL("f/one.txt"), oneType, "", one, map[string]string{"f/one.txt": "one"}},
		{"a form of many", "/files", manyType, "", many, map[string]string{"m/a.txt": "A", "m/b c.txt": "B"}},
		{"a shorter content", fileURL("o/x.bin"), octets, "", "d", map[string]string{"o/x.bin": "d"}},
	}
	for _, c := range cases {
		header := http.Header{"Content-Type": {c.contentType}}
		if c.encoding != "" {
			header.Set("Content-Encoding", c.encoding)
		}
		code, answer := s.call(t, http.MethodPost, c.target, c.body, header)
		var written []struct{ Name, Path, Type string }
		if err := json.Unmarshal([]byte(answer), &written); err != nil || code != http.StatusOK || len(written) != len(c.want) {
			t.Fatalf("%s: %d %s", c.name, code, answer)
		}
		for path, content := range c.want {
			if got := read(t, filepath.Join(s.home, path)); got != content {
				t.Errorf("%s: %s holds %q, want %q", c.name, path, got, content)
			}
		}
		for _, w := range written {
			if w.Type != "file" || w.Name != filepath.Base(w.Path) || !strings.HasPrefix(w.Path, s.home) {
				t.Errorf("%s: answered %+v", c.name, w)
			}
		}
	}
}

func TestUploadRefuses(t *testing.T) {
	s := start(t)
	otherType, other := form(t, "other", "a", "A")
	twiceType, twice := form(t, "file", "a", "A", "a", "B")
	if err := os.WriteFile(filepath.Join(s.home, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name, target, contentType, encoding, body string
		want                                      int
	}{
		{"no path", "/files", octets, "", "x", 400},
		{"a directory", fileURL(s.home), octets, "", "x", 400},
		{"a path through a file", fileURL("file/below"), octets, "", "x", 400},
		{"a device", fileURL("/dev/null"), octets, "", "x", 400},
		{"NUL", fileURL("a\x00b"), octets, "", "x", 400},
		{"somebody's home", fileURL("~root/x"), octets, "", "x", 400},
		{"a name too long", fileURL(strings.Repeat("x", 300)), octets, "", "x", 400},
		{"no content type", fileURL("x"), "", "", "x", 400},
		{"another content type", fileURL("x"), "text/plain", "", "x", 400},
		{"another encoding", fileURL("x"), octets, "br", "x", 400},
		{"no gzip", fileURL("new1"), octets, "gzip", "not gzip", 400},
		{"a cut gzip", fileURL("new2"), octets, "gzip", zipped(t, strings.Repeat("x", 10))[:15], 400},
		{"no file in the form", fileURL("x"), otherType, "", other, 400},
		{"two parts to one path", "/files", twiceType, "", twice, 400},
		{"a cut form", fileURL("new3"), twiceType, "", twice[:len(twice)/3], 400},
	}
	for _, c := range cases {
		header := http.Header{}
		for name, value := range map[string]string{"Content-Type": c.contentType, "Content-Encoding": c.encoding} {
			if value != "" {
				header.Set(name, value)
			}
		}
		code, answer := s.call(t, http.MethodPost, c.target, c.body, header)
		if code != c.want || !strings.Contains(answer, `"message":"`) {
			t.Errorf("%s: %d %s, want %d", c.name, code, answer, c.want)
		}
	}
	for _, name := range []string{"new1", "new2", "new3", "x"} {
		if _, err := os.Lstat(filepath.Join(s.home, name)); err == nil {
			t.Errorf("the failed upload has left %s behind", name)
		}
	}
}

func TestAnUploadThatBreaksOffLeavesNoPart(t *testing.T) {
	s := start(t)
	if err := os.WriteFile(filepath.Join(s.home, "old"), []byte("old content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new", "old"} {
		reader, writer := io.Pipe()
		go func() {
			_, _ = writer.Write(make([]byte, 1<<20))
			writer.CloseWithError(errors.New("the client dies"))
		}()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+fileURL(name), reader)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", octets)
		if response, err := s.client.Do(request); err == nil {
			response.Body.Close()
			t.Fatalf("the upload was answered with %d", response.StatusCode)
		}
	}
	eventually(t, "the new file is gone", func() bool {
		_, err := os.Lstat(filepath.Join(s.home, "new"))
		return errors.Is(err, os.ErrNotExist)
	})
	eventually(t, "the old file is empty", func() bool {
		info, err := os.Lstat(filepath.Join(s.home, "old"))
		return err == nil && info.Size() == 0 && info.Mode() == 0o600
	})
}

func TestMetadata(t *testing.T) {
	s := start(t)
	stat := func() map[string]string {
		entry, err := s.filesystem().Stat(t.Context(), connect.NewRequest(&fspb.StatRequest{Path: "meta"}))
		if err != nil {
			t.Fatal(err)
		}
		return entry.Msg.GetEntry().GetMetadata()
	}
	upload := func(metadata http.Header) (int, string) {
		metadata.Set("Content-Type", octets)
		return s.call(t, http.MethodPost, fileURL("meta"), "x", metadata)
	}
	code, answer := upload(http.Header{"X-Metadata-Owner": {"me"}, "X-Metadata-Two": {"2"}})
	if code == http.StatusBadRequest && strings.Contains(answer, "extended attributes") {
		t.Skip("this file system has no user extended attributes")
	}
	if code != http.StatusOK || !strings.Contains(answer, `"metadata":{"owner":"me","two":"2"}`) {
		t.Fatalf("upload: %d %s", code, answer)
	}
	if got := stat(); len(got) != 2 || got["owner"] != "me" || got["two"] != "2" {
		t.Errorf("metadata %v", got)
	}
	upload(http.Header{"X-Metadata-Three": {"3"}})
	if got := stat(); len(got) != 1 || got["three"] != "3" {
		t.Errorf("replaced metadata %v", got)
	}
	if _, answer := upload(http.Header{}); strings.Contains(answer, "metadata") || len(stat()) != 0 {
		t.Errorf("without metadata: %s, %v", answer, stat())
	}
	for name, header := range map[string]http.Header{
		"a key too long":   {"X-Metadata-" + strings.Repeat("k", 247): {"v"}},
		"too much":         {"X-Metadata-K": {strings.Repeat("v", 4096)}},
		"a value not text": {"X-Metadata-K": {"\xc3\xa9"}},
	} {
		if code, answer := upload(header); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, code, answer)
		}
	}
}

func TestCompose(t *testing.T) {
	s := start(t)
	for name, content := range map[string]string{"p1": "one ", "p2": "two ", "p3": "three"} {
		if err := os.WriteFile(filepath.Join(s.home, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	compose := func(body string) (int, string) {
		return s.call(t, http.MethodPost, "/files/compose", body, http.Header{"Content-Type": {"application/json"}})
	}
	for body, want := range map[string]int{
		`{"destination":"d","source_paths":["p1","nope"]}`: 404,
		`{"destination":"d","source_paths":[]}`:            400,
		`{"source_paths":["p1"]}`:                          400,
		`{"destination":"/etc","source_paths":["p1"]}`:     400,
		`{`: 400,
	} {
		if code, answer := compose(body); code != want {
			t.Errorf("%s: %d %s, want %d", body, code, answer, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(s.home, ".compose*")); len(left) > 0 || read(t, filepath.Join(s.home, "p1")) != "one " {
		t.Errorf("a failed composition has left %v or taken its source", left)
	}
	code, answer := compose(`{"destination":"sub/whole","source_paths":["p1","p2","p3"]}`)
	if code != http.StatusOK || !strings.Contains(answer, `"name":"whole"`) {
		t.Fatalf("%d %s", code, answer)
	}
	if got := read(t, filepath.Join(s.home, "sub/whole")); got != "one two three" {
		t.Errorf("composed %q", got)
	}
	if _, err := os.Lstat(filepath.Join(s.home, "p2")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a source is still there")
	}
}
