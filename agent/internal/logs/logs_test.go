package logs

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func ring() *Ring { return NewRing(func() time.Time { return time.Unix(1_800_000_000, 0) }) }

// read never waits.
func read(r *Ring, after uint64, limit int) Page {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return r.Read(ctx, after, limit)
}

// all reads page after page.
func all(r *Ring) Page {
	whole := read(r, 0, 1000)
	for {
		page := read(r, whole.Next, 1000)
		if len(page.Entries) == 0 {
			return whole
		}
		whole.Entries, whole.Next = append(whole.Entries, page.Entries...), page.Next
	}
}

func messages(page Page) []string {
	var all []string
	for _, e := range page.Entries {
		all = append(all, e.Message)
	}
	return all
}

func TestChunksBecomeLines(t *testing.T) {
	long := strings.Repeat("x", MaxLine+10)
	cases := []struct {
		name   string
		chunks []string
		want   []string
	}{
		{"whole lines", []string{"a\nb\n"}, []string{"a", "b"}},
		{"a line over chunks", []string{"a", "b", "c\nd\n"}, []string{"abc", "d"}},
		{"the last line without an end", []string{"a\nb"}, []string{"a", "b"}},
		{"empty lines", []string{"\n\na\n"}, []string{"", "", "a"}},
		{"carriage returns", []string{"a\r\nb\r\n"}, []string{"a", "b"}},
		{"binary", []string{"a\xff\xfeb\n"}, []string{"a\uFFFDb"}},
		{"a long line is cut", []string{long + "\nnext\n"}, []string{long[:MaxLine], "next"}},
		{"a long line over chunks is cut", []string{long, long, "\nnext\n"}, []string{long[:MaxLine], "next"}},
		{"nothing", []string{""}, nil},
	}
	for _, c := range cases {
		r := ring()
		lines := r.Lines(Stdout, nil)
		for _, chunk := range c.chunks {
			lines.Write([]byte(chunk))
		}
		lines.Close()
		got := messages(read(r, 0, 100))
		if strings.Join(got, "|") != strings.Join(c.want, "|") || len(got) != len(c.want) {
			t.Errorf("%s: %.60q, want %.60q", c.name, got, c.want)
		}
		for _, line := range got {
			if !utf8.ValidString(line) {
				t.Errorf("%s: %q is not UTF-8", c.name, line)
			}
		}
	}
}

func TestTheOldestEntriesGiveWay(t *testing.T) {
	r := ring()
	lines := r.Lines(Stderr, nil)
	line := []byte(strings.Repeat("x", 1000) + "\n")
	const written = 10_000
	for range written {
		lines.Write(line)
	}
	page := all(r)
	if page.Next != written || page.Dropped+uint64(len(page.Entries)) != written || page.Dropped == 0 {
		t.Errorf("next %d, dropped %d, entries %d", page.Next, page.Dropped, len(page.Entries))
	}
	bytes := 0
	for _, e := range page.Entries {
		bytes += len(e.Message)
	}
	if bytes > Capacity || bytes < Capacity*3/4 {
		t.Errorf("the ring holds %d bytes of %d", bytes, Capacity)
	}
	if later := read(r, written-1, 10); later.Dropped != 0 || len(later.Entries) != 1 {
		t.Errorf("after the last but one: %+v", later)
	}
}

func TestPaging(t *testing.T) {
	r := ring()
	r.Lines(Stdout, map[string]string{"pid": "1"}).Write([]byte("a\nb\nc\n"))
	first := read(r, 0, 2)
	second := read(r, first.Next, 2)
	if got := messages(first); len(got) != 2 || got[0] != "a" || first.Next != 2 {
		t.Errorf("first page %+v", first)
	}
	if got := messages(second); len(got) != 1 || got[0] != "c" || second.Next != 3 {
		t.Errorf("second page %+v", second)
	}
	if e := first.Entries[0]; e.Seq != 1 || e.Stream != Stdout || e.Level != "info" || e.Fields["pid"] != "1" ||
		e.Timestamp != 1_800_000_000 {
		t.Errorf("entry %+v", e)
	}
	if empty := read(r, 3, 2); empty.Next != 3 || empty.Entries == nil || len(empty.Entries) != 0 {
		t.Errorf("empty page %+v", empty)
	}
}

func TestAPageIsBoundedInBytes(t *testing.T) {
	r := ring()
	lines := r.Lines(Stdout, nil)
	for range 200 {
		lines.Write([]byte(strings.Repeat("x", MaxLine) + "\n"))
	}
	if page := read(r, 0, 1000); len(page.Entries) == 0 || len(page.Entries)*MaxLine > maxPage {
		t.Errorf("a page of %d entries of %d bytes", len(page.Entries), MaxLine)
	}
}

func TestACursorFromTheFutureIsCorrected(t *testing.T) {
	r := ring()
	r.System("info", "one", nil)
	if page := r.Read(context.Background(), 99, 10); page.Next != 1 || len(page.Entries) != 0 {
		t.Errorf("page %+v", page)
	}
}

func TestReadWaitsForTheNextEntry(t *testing.T) {
	r := ring()
	got := make(chan Page)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go func() { got <- r.Read(ctx, 0, 10) }()
	r.System("warning", "late", nil)
	if page := <-got; len(page.Entries) != 1 || page.Entries[0].Stream != System {
		t.Errorf("page %+v", page)
	}
}
