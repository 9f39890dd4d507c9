package process

import (
	"os"
	"testing"
)

func TestParseStat(t *testing.T) {
	cases := []struct {
		name, stat string
		want       kin
		ok         bool
	}{
		{"plain", "7 (sh) S 1 2 3 0 -1", kin{7, 1, 2, 3}, true},
		{"a name with blanks and parentheses", "7 (a) S 9 (b) R 1 2 3 0", kin{7, 1, 2, 3}, true},
		{"zombie", "7 (sh) Z 1 2 3 0", kin{7, 1, 2, 3}, false},
		{"cut off", "7 (sh) S 1", kin{7, 1, 0, 0}, false},
		{"empty", "", kin{7, 0, 0, 0}, false},
	}
	for _, c := range cases {
		if got, ok := parseStat(7, []byte(c.stat)); got != c.want || ok != c.ok {
			t.Errorf("%s: %+v %v, want %+v %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestTheTableHoldsThisProcess(t *testing.T) {
	for _, k := range table() {
		if k.pid == os.Getpid() && k.parent == os.Getppid() {
			return
		}
	}
	t.Error("the test's own process is not in the table")
}
