package process

import (
	"slices"
	"testing"
)

func TestShell(t *testing.T) {
	cases := []struct {
		asked   string
		present []string
		want    string
	}{
		{"/bin/bash", []string{"/bin/bash", "/bin/sh"}, "/bin/bash"},
		{"/bin/bash", []string{"/usr/local/bin/bash", "/bin/sh"}, "/usr/local/bin/bash"},
		{"/bin/bash", []string{"/bin/sh"}, "/bin/sh"},
		{"/bin/bash", nil, "/bin/bash"},
		{"/bin/zsh", []string{"/bin/sh"}, "/bin/zsh"},
		{"/bin/sh", nil, "/bin/sh"},
	}
	for _, c := range cases {
		got := shell(c.asked, func(path string) bool { return slices.Contains(c.present, path) })
		if got != c.want {
			t.Errorf("shell(%q) with %v = %q, want %q", c.asked, c.present, got, c.want)
		}
	}
}
