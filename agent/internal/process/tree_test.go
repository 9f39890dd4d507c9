package process

import (
	"slices"
	"testing"
)

func TestMembers(t *testing.T) {
	const self = 1
	all := []kin{
		{pid: 1, parent: 0, group: 1, session: 1},
		{pid: 10, parent: 1, group: 10, session: 10},  // root of the tree
		{pid: 11, parent: 10, group: 10, session: 10}, // a child
		{pid: 12, parent: 11, group: 12, session: 12}, // a grandchild that called setsid
		{pid: 13, parent: 12, group: 12, session: 12}, // and its child
		{pid: 14, parent: 1, group: 14, session: 10},  // an orphan in a job of the session
		{pid: 15, parent: 14, group: 15, session: 15}, // and its child
		{pid: 20, parent: 1, group: 20, session: 20},  // another command
		{pid: 21, parent: 20, group: 20, session: 20},
	}
	for range 3 { // the order of the table does not matter
		slices.Reverse(all)
		got := members(all, 10, self)
		slices.Sort(got)
		if want := []int{10, 11, 12, 13, 14, 15}; !slices.Equal(got, want) {
			t.Errorf("members = %v, want %v", got, want)
		}
		all = append(all[3:], all[:3]...)
	}
	got := descendants(all, 20)
	if !slices.Equal(got, []int{21}) {
		t.Errorf("descendants = %v, want [21]", got)
	}
}
