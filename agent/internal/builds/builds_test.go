package builds

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aenv.dev/agent/internal/clock"
	"aenv.dev/agent/internal/identity"
	"aenv.dev/agent/internal/settings"
	"aenv.dev/agent/internal/users"
)

type guest struct {
	root string
	mux  *http.ServeMux
}

func newGuest(t *testing.T) *guest {
	t.Helper()
	root := t.TempDir()
	store := settings.NewStore()
	b := &Builds{
		Identity: &identity.Resolver{Users: users.NewSingle(root), Settings: store},
		Clock:    clock.New(), Etc: filepath.Join(root, "etc"), Homes: filepath.Join(root, "home"),
	}
	mux := http.NewServeMux()
	b.Routes(mux, func(h http.Handler) http.Handler { return h })
	return &guest{root, mux}
}

func (g *guest) post(path string, query url.Values, body []byte) (int, string) {
	request := httptest.NewRequest(http.MethodPost, path+"?"+query.Encode(), bytes.NewReader(body))
	answer := httptest.NewRecorder()
	g.mux.ServeHTTP(answer, request)
	return answer.Code, answer.Body.String()
}

func (g *guest) copy(t *testing.T, source, target, mode string, archive []byte) (int, string) {
	t.Helper()
	slash := ""
	if strings.HasSuffix(target, "/") {
		slash = "/"
	}
	query := url.Values{"source": {source}, "path": {filepath.Join(g.root, target) + slash}, "mode": {mode}}
	return g.post("/aenv/build/unpack", query, archive)
}

type entry struct {
	name, content string
	kind          byte
	link          string
	mode          int64
}

func archive(t *testing.T, zipped bool, entries ...entry) []byte {
	t.Helper()
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, e := range entries {
		kind, mode := e.kind, e.mode
		if kind == 0 {
			kind = tar.TypeReg
		}
		if mode == 0 {
			mode = 0o755
		}
		header := &tar.Header{Name: e.name, Typeflag: kind, Linkname: e.link, Mode: mode, Size: int64(len(e.content))}
		if err := writer.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if !zipped {
		return buffer.Bytes()
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	if _, err := zip.Write(buffer.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func folder(name string) entry { return entry{name: name, kind: tar.TypeDir} }

func TestCopyPutsThingsWhereADockerfileWould(t *testing.T) {
	app := []entry{folder("app"), {name: "app/main.py", content: "main"}, folder("app/lib"), {name: "app/lib/a.py", content: "a"}}
	file := []entry{{name: "conf/a.txt", content: "a"}}
	texts := []entry{{name: "x.txt", content: "x"}, {name: "y.txt", content: "y"}}
	for name, c := range map[string]struct {
		source, target string
		entries        []entry
		want           map[string]string
	}{
		"a folder gives its content":       {"app", "srv", app, map[string]string{"srv/main.py": "main", "srv/lib/a.py": "a"}},
		"a folder with a dot":              {"./app/", "srv/", app, map[string]string{"srv/main.py": "main"}},
		"the whole context":                {".", "srv", append([]entry{folder(".")}, app...), map[string]string{"srv/app/main.py": "main"}},
		"a file becomes the target":        {"conf/a.txt", "etc/b.txt", file, map[string]string{"etc/b.txt": "a"}},
		"a file goes into a folder":        {"conf/a.txt", "etc/", file, map[string]string{"etc/a.txt": "a"}},
		"a file goes into one that exists": {"conf/a.txt", "old", file, map[string]string{"old/a.txt": "a"}},
		"a pattern":                        {"*.txt", "texts", texts, map[string]string{"texts/x.txt": "x", "texts/y.txt": "y"}},
		"any depth keeps folders":          {"app/**/*.py", "srv", app, map[string]string{"srv/lib/a.py": "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuest(t)
			if err := os.Mkdir(filepath.Join(g.root, "old"), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, zipped := range []bool{true, false} {
				if code, answer := g.copy(t, c.source, c.target, "", archive(t, zipped, c.entries...)); code != 200 {
					t.Fatalf("%d %s", code, answer)
				}
			}
			for path, want := range c.want {
				got, err := os.ReadFile(filepath.Join(g.root, path))
				if err != nil || string(got) != want {
					t.Errorf("%s: %q, %v", path, got, err)
				}
			}
		})
	}
}

func TestModesAndLinksOfACopy(t *testing.T) {
	g := newGuest(t)
	entries := []entry{
		folder("d"), {name: "d/tool", content: "x", mode: 0o4755},
		{name: "d/link", kind: tar.TypeSymlink, link: "tool"}, {name: "d/same", kind: tar.TypeLink, link: "d/tool"},
	}
	if code, answer := g.copy(t, "d", "as-is", "", archive(t, true, entries...)); code != 200 {
		t.Fatal(answer)
	}
	info, err := os.Stat(filepath.Join(g.root, "as-is/tool"))
	if err != nil || info.Mode() != 0o755|os.ModeSetuid {
		t.Errorf("as archived: %v %v", info, err)
	}
	same, err := os.Stat(filepath.Join(g.root, "as-is/same"))
	if err != nil || !os.SameFile(info, same) {
		t.Errorf("the hard link: %v", err)
	}
	if target, _ := os.Readlink(filepath.Join(g.root, "as-is/link")); target != "tool" {
		t.Errorf("the link leads to %q", target)
	}
	if code, answer := g.copy(t, "d", "given", "0640", archive(t, true, entries[:2]...)); code != 200 {
		t.Fatal(answer)
	}
	for path, want := range map[string]os.FileMode{"given": os.ModeDir | 0o750, "given/tool": 0o640} {
		if info, err := os.Stat(filepath.Join(g.root, path)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
}

func TestBadArchivesAreRefused(t *testing.T) {
	whole := archive(t, true, entry{name: "a", content: strings.Repeat("x", 4096)})
	plain := archive(t, false, entry{name: "a", content: strings.Repeat("x", 4096)})
	for name, body := range map[string][]byte{
		"cut off":        whole[:len(whole)/2],
		"cut off, plain": plain[:1024],
		"no archive":     []byte(strings.Repeat("nonsense", 200)),
		"a device":       archive(t, true, entry{name: "a", kind: tar.TypeBlock}),
		"nothing in it":  archive(t, true),
		"a link away":    archive(t, true, entry{name: "a", kind: tar.TypeLink, link: "../../etc/shadow"}),
	} {
		g := newGuest(t)
		if code, answer := g.copy(t, "a", "x", "", body); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, code, answer)
		}
		if _, err := os.Lstat(filepath.Join(g.root, "x")); err == nil {
			t.Errorf("%s: a part of it is left", name)
		}
	}
	g := newGuest(t)
	if code, _ := g.copy(t, "d", "x", "rw", nil); code != http.StatusBadRequest {
		t.Errorf("a mode that is none: %d", code)
	}
	if code, answer := g.copy(t, ".", "in", "", archive(t, true, entry{name: "../../out", content: "x"})); code != 200 {
		t.Fatal(answer)
	}
	if _, err := os.Stat(filepath.Join(g.root, "in/out")); err != nil {
		t.Errorf("names that climb stay below the target: %v", err)
	}
}

func TestAnImageIsGivenItsUser(t *testing.T) {
	g := newGuest(t)
	etc := filepath.Join(g.root, "etc")
	query := url.Values{"name": {"user"}}
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if err := os.Mkdir(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh", "group": "root:x:0:\nnode:x:1000:\n",
		"shadow": "root:*:::::::\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time nothing is left to do
		if code, answer := g.post("/aenv/build/user", query, nil); code != 200 {
			t.Fatalf("%d %s", code, answer)
		}
	}
	home := filepath.Join(g.root, "home/user")
	for name, want := range map[string]string{
		"passwd":            "node:x:1000:1000::/home/node:/bin/sh\nuser:x:1001:1001::" + home + ":/bin/sh\n",
		"group":             "node:x:1000:\nuser:x:1001:\n",
		"shadow":            "user:*:19000:0:99999:7:::\n",
		"sudoers.d/90-user": "user ALL=(ALL:ALL) NOPASSWD: ALL\n",
	} {
		got, err := os.ReadFile(filepath.Join(etc, name))
		if err != nil || !strings.HasSuffix(string(got), want) || strings.Count(string(got), "user:x:")+strings.Count(string(got), "user:*:") > 1 {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	if info, err := os.Stat(home); err != nil || !info.IsDir() {
		t.Errorf("the home: %v", err)
	}
}

func TestAnEmptyImageIsGivenItsUser(t *testing.T) {
	g := newGuest(t)
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if code, answer := g.post("/aenv/build/user", url.Values{"name": {"user"}}, nil); code != 200 {
		t.Fatalf("%d %s", code, answer)
	}
	got, err := os.ReadFile(filepath.Join(g.root, "etc/passwd"))
	if err != nil || !strings.HasPrefix(string(got), "root:x:0:0:") || !strings.Contains(string(got), "\nuser:*:1000:1000::") {
		t.Errorf("%q %v", got, err)
	}
	if code, _ := g.post("/aenv/build/user", url.Values{"name": {"a:0:0"}}, nil); code != http.StatusBadRequest {
		t.Errorf("a name that is none: %d", code)
	}
}

func TestAWorkingDirectoryIsMade(t *testing.T) {
	g := newGuest(t)
	path := filepath.Join(g.root, "a/b")
	for range 2 {
		if code, answer := g.post("/aenv/build/folder", url.Values{"path": {path}}, nil); code != http.StatusNoContent {
			t.Fatalf("%d %s", code, answer)
		}
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		t.Error(err)
	}
}

func TestWhatIsPackedIsUnpackedElsewhere(t *testing.T) {
	g := newGuest(t)
	tree := filepath.Join(g.root, "out")
	for _, folder := range []string{"a", "empty"} {
		if err := os.MkdirAll(filepath.Join(tree, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(tree, "a/tool"), []byte("tool"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(tree, "a/tool"), filepath.Join(tree, "a/same")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("tool", filepath.Join(tree, "a/link")); err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodGet, "/aenv/build/pack?path="+url.QueryEscape(tree), nil)
	answer := httptest.NewRecorder()
	g.mux.ServeHTTP(answer, request)
	if answer.Code != 200 {
		t.Fatal(answer.Body.String())
	}
	query := url.Values{"source": {tree}, "path": {filepath.Join(g.root, "in")}, "owner": {"="}}
	if code, said := g.post("/aenv/build/unpack", query, answer.Body.Bytes()); code != 200 {
		t.Fatal(said)
	}
	first, err := os.Stat(filepath.Join(g.root, "in/a/tool"))
	same, _ := os.Stat(filepath.Join(g.root, "in/a/same"))
	through, _ := os.Stat(filepath.Join(g.root, "in/a/link"))
	if err != nil || first.Mode() != 0o750 || !os.SameFile(first, same) || !os.SameFile(first, through) {
		t.Errorf("%v %v", first, err)
	}
	if _, err := os.Stat(filepath.Join(g.root, "in/empty")); err != nil {
		t.Error(err)
	}
	request = httptest.NewRequest(http.MethodGet, "/aenv/build/pack?path=/nope/nothing", nil)
	answer = httptest.NewRecorder()
	if g.mux.ServeHTTP(answer, request); answer.Code != http.StatusBadRequest {
		t.Errorf("what is not there: %d", answer.Code)
	}
}

func TestAFolderIsCoveredForAWhile(t *testing.T) {
	g := newGuest(t)
	path := filepath.Join(g.root, "cache")
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "old"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{path, filepath.Join(g.root, "new/cache")} {
		if code, answer := g.post("/aenv/build/cover", url.Values{"path": {place}}, nil); code != http.StatusNoContent {
			t.Fatal(answer)
		}
		if entries, err := os.ReadDir(place); err != nil || len(entries) > 0 {
			t.Errorf("%v %v", entries, err)
		}
		if err := os.WriteFile(filepath.Join(place, "new"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if code, answer := g.post("/aenv/build/uncover", url.Values{"path": {place}}, nil); code != http.StatusNoContent {
			t.Fatal(answer)
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) != 1 || entries[0].Name() != "old" {
		t.Errorf("%v %v", entries, err)
	}
	if _, err := os.Lstat(filepath.Join(g.root, "new/cache")); err == nil {
		t.Error("what was not there is there")
	}
	if code, _ := g.post("/aenv/build/cover", url.Values{"path": {"/"}}, nil); code != http.StatusBadRequest {
		t.Errorf("the root: %d", code)
	}
}
